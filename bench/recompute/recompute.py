"""What does running segments again in backward save in memory, and what does it cost in time?"""

import json
import os
import subprocess

from common.programs import output_of
from common.report import all_missing, marked, number, per_round, summary, table
from step.rivals import NO_PYTHON

PROGRAM = "bench_recompute"
MODELS = {"LSTM, 1 024 time steps": "lstm", "24 blocks of attention and MLP": "blocks"}
# Times less memory than plainly, and times the time.
AIMS = {"lstm": ("again, 32 chunks", 4, 1.3), "blocks": ("budget 0 %", 3, 1.35)}
CELL_SECONDS = 90


def cells(_, settings):
    return dict(list(MODELS.items())[1:]) if settings.quick else MODELS


def read(answer):
    entries = {}
    for way, values in answer.items():
        entries[way] = {"bytes": values["peak"], **summary([[value] for value in values["ns"]])}
    return {way: {**entry, "less_memory": entries["plain"]["bytes"] / max(1, entry["bytes"]),
                  "slower": per_round(entry, entries["plain"])} for way, entry in entries.items()}


def measure(tools, settings, left, watch):
    program = tools.program(PROGRAM)
    rival = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rival.py")
    for name, model in left.items():
        value = {"name": name, "model": model, "sides": {}, "missing": {}}
        rounds = str(max(2, settings.rounds))
        if os.path.exists(program):
            value["sides"]["Tutti"] = read(json.loads(output_of([program, model, rounds], watch)))
        else:
            value["missing"][PROGRAM] = "build with -DTUTTI_BENCH=ON"
        if tools.torch_python:
            try:
                value["sides"]["PyTorch"] = read(json.loads(output_of([tools.torch_python, rival, model, rounds], watch)))
            except subprocess.CalledProcessError as error:
                value["missing"]["torch.utils.checkpoint"] = error.stderr.strip().splitlines()[-1]
        else:
            value["missing"]["torch.utils.checkpoint"] = NO_PYTHON
        yield name, value


def result(values):
    return {"entries": [v for v in values if v["sides"]], "missing": all_missing(values)}


def verdict(entry, side, way):
    aimed, memory, time = AIMS[entry["model"]]
    if side != "Tutti" or way != aimed:
        return ""
    values = entry["sides"][side][way]
    return "met" if values["less_memory"] >= memory and values["slower"] <= time else "NOT met"


def show(result):
    print("\nForward and backward of one step, a thread; the most memory of libtorch's allocator at one time, parameters "
          "and their\ngradients left aside; plain ÷ this, and this ÷ plain of the same program, median of rounds. Aims: "
          "LSTM 4 × less at 1.3 ×\nthe time, blocks 3 × less at 1.35 ×")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    rows = []
    for entry in result["entries"]:
        for side, ways in entry["sides"].items():
            for way, values in ways.items():
                rows.append([marked(entry["name"], entry), side, way, number(values["median_us"] / 1e3),
                             number(values["slower"]), number(values["bytes"] / 1e6), number(values["less_memory"]),
                             verdict(entry, side, way)])
    print(table(["", "", "", "ms", "÷ plain", "MB", "less memory", ""], rows))
