"""What is it worth to send small gradients together?"""

import os

from common.contestants import Contestant, Failed
from common.report import machine, number, per_round, summary, table
from step import rivals
from step.rivals import launch
from step.step import KEEP_MEMORY, WARM_UP

WORKERS = 2
MODEL = "many"
ELEMENTS = 158400
FUSIONS = {"1": 1, "2¹⁶": 2**16, "2²¹": 2**21, "all": 2**40}
NO_SYNC = "no sync, C++"
# Megabytes of DDP's buckets for as many elements.
DDP = {"DDP, buckets of one": "0.000001", "DDP, buckets of 2¹⁶": str(2**18 / 2**20), "DDP, one bucket": "25"}


def contestants(tools):
    """{column: commands}, and {column: remedy} of what is missing."""
    present, missing = {}, {}
    if os.path.exists(tools.program("bench_step_tutti")):
        for text, fusion in FUSIONS.items():
            present[f"DataParallel, fusion {text}"] = launch(
                tools, WORKERS, "bench_step_tutti", "{socket}", MODEL, "fused", str(fusion))
        for text, fusion in FUSIONS.items():
            present[f"Trainer, top-K 1 %, fusion {text}"] = launch(
                tools, WORKERS, "bench_step_trainer", "{socket}", MODEL, str(WORKERS), "topk:0.01",
                str(WORKERS), str(fusion))
        present[NO_SYNC] = launch(tools, WORKERS, "bench_step_barrier", "{socket}", MODEL, "fused")
    else:
        missing["Tutti"] = "build with -DTUTTI_TORCH=ON"
    script = os.path.join(rivals.HERE, "ddp.py")
    for column, bucket in DDP.items():
        if tools.torch_python:
            present[column] = [[tools.torch_python, script, "{socket}", MODEL, "fused", str(rank), str(WORKERS),
                                "{store}", "ddp:" + bucket] for rank in range(WORKERS)]
        else:
            missing[column] = "give --torch-python, a Python with torch 2.x"
    return present, missing


def measure(tools, settings):
    commands, missing = contestants(tools)
    rounds = {column: [] for column in commands}
    buckets = {}
    for restart in range(settings.restarts):
        running = {}
        try:
            for column in commands:
                try:
                    running[column] = Contestant(column, commands[column], WORKERS, KEEP_MEMORY)
                    running[column].ask(f"steps {WARM_UP}")
                except (Failed, OSError) as error:
                    missing[column] = str(error)
            order = [c for c in running if c not in missing]
            for turn in range(max(1, settings.rounds // settings.restarts)):
                shift = (turn + restart) % max(1, len(order))
                for column in order[shift:] + order[:shift]:
                    rounds[column].append(running[column].ask(f"steps {settings.steps + 1}")[0][1:])
            for column in order:
                if column.startswith("DataParallel"):
                    buckets[column] = running[column].ask("traffic")[0][0]
        finally:
            for contestant in running.values():
                contestant.close()
    return {c: r for c, r in rounds.items() if r and c not in missing}, buckets, missing


def run(tools, settings):
    settings.progress("fusion")
    rounds, buckets, missing = measure(tools, settings)
    cells = {column: summary(r) for column, r in rounds.items()}
    for column, cell in cells.items():
        cell["to_no_sync"] = per_round(cell, cells[NO_SYNC]) if NO_SYNC in cells else None
        cell["buckets"] = buckets.get(column)
    return {"benchmark": "fusion", "machine": machine(), "settings": settings.values(), "workers": WORKERS,
            "columns": cells, "missing": missing}


def show(result):
    print(f"\n300 tensors of {ELEMENTS} elements in all, {result['workers']} workers, one thread each, fused Adam; "
          "ms, medians of rounds")
    rows = []
    for column, cell in result["columns"].items():
        rows.append([column, "" if cell["buckets"] is None else str(cell["buckets"]),
                     *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                     number(cell["to_no_sync"])])
    print("\n" + table(["", "exchanges", "median", "min", "p99", "÷ no sync"], rows))
    for column, why in result["missing"].items():
        print(f"{column} is missing: {why}")
