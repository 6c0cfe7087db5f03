"""What do shares by speed gain where one of two workers is half as fast?"""

import json
import os

from common.programs import output_of
from common.report import all_missing, marked, number, per_round, summary, table
from step.rivals import launch

PROGRAM = "bench_speeds"
SHARES = ("equal", "by speed")
STEPS = 5  # of a round, as in the program
AT_LEAST = 1.2  # times faster, or the option goes
CELL_SECONDS = 30


def cells(_tools, _settings):
    return {"two workers, 2 : 1": None}


def measure(tools, settings, left, watch):
    for name in left:
        if not os.path.exists(tools.program(PROGRAM)):
            yield name, {"missing": {PROGRAM: "build with -DTUTTI_BENCH=ON"}}
            continue
        answer = json.loads(output_of(launch(tools, 2, PROGRAM, str(settings.rounds))[0], watch).removeprefix("[0] "))
        times = {shares: summary([[value] for value in answer[shares]]) for shares in SHARES}
        yield name, {"name": name, "times": times, "missing": {},
                     "faster": per_round(times["equal"], times["by speed"])}


def result(values):
    return {"entries": [v for v in values if not v["missing"]], "missing": all_missing(values)}


def show(result):
    print("\nA step of 12 shards on two workers, of which rank 1 shares its processor with another process: ms, median,")
    print(f"with equal shares and with speeds = {{2, 1}}. Aim: at least {AT_LEAST} × faster")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    rows = [[marked(entry["name"], entry),
             *(number(entry["times"][shares]["median_us"] / 1e3 / STEPS) for shares in SHARES),
             number(entry["faster"]), "met" if entry["faster"] >= AT_LEAST else "NOT met"]
            for entry in result["entries"]]
    print(table(["", "equal ms", "by speed ms", "equal ÷ by speed", ""], rows))
