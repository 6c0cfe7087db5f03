"""What does a bound on instruction sets cost (tutti run --cpu)?"""

import os

from common.report import marked, number, per_round, summary, table
from common.turns import take_turns
from step.rivals import launch
from step.step import MODELS as STEP_MODELS

PROGRAM = "bench_step_trainer"
WORKERS = 1  # what workers exchange does not depend on it
MODELS = STEP_MODELS
NATIVE = "native"
LEVELS = ("avx512", "avx2", "default")
AIMS = {"avx2": 1.3}  # × native
CELL_SECONDS = 60


def contestants(tools, model):
    """{column: commands}, and {column: remedy} of what is missing. `tutti run` refuses a level that the processor
    does not have."""
    present, missing = {}, {}
    for level in [NATIVE, *LEVELS]:
        if os.path.exists(tools.program(PROGRAM)):
            present[level] = launch(tools, WORKERS, PROGRAM, "{socket}", model, str(WORKERS),
                                    options=(f"--cpu={level}",))
        else:
            missing[level] = "build with -DTUTTI_TORCH=ON"
    return present, missing


def cells(_, settings):
    return {model: model for model in MODELS if model in settings.models}


def measure(tools, settings, left, watch):
    for name, model in left.items():
        commands, missing = contestants(tools, model)
        rounds, _ = take_turns(commands, WORKERS, settings, watch, missing)
        columns = {column: summary(r) for column, r in rounds.items()}
        for cell in columns.values():
            cell["to_native"] = per_round(cell, columns[NATIVE]) if NATIVE in columns else None
        yield name, {"model": model, "workers": WORKERS, "columns": columns, "missing": missing}


def result(values):
    return {"entries": values}


def verdict(column, ratio):
    aim = AIMS.get(column)
    if aim is None or ratio is None:
        return ""
    return f"≤ {aim:g}: {'met' if ratio <= aim else 'NOT met'}"


def show(result):
    print("\nTraining step of a Trainer under a level, one worker of one thread; ms, medians of rounds")
    for entry in result["entries"]:
        print("\n" + marked(MODELS[entry["model"]], entry))
        rows = []
        for column, cell in entry["columns"].items():
            rows.append([column, *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                         number(cell["to_native"]), verdict(column, cell["to_native"])])
        print(table(["", "median", "min", "p99", "÷ native", "aim"], rows))
        for column, why in entry["missing"].items():
            print(f"{column} is missing: {why}")
