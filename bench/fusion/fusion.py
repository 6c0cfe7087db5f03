"""What is it worth to send small gradients together?"""

import os

from common.report import marked, number, per_round, summary, table
from common.turns import take_turns
from step.rivals import NO_PYTHON, launch, python

WORKERS = 2
MODEL = "many"
ELEMENTS = 158400
FUSIONS = {"1": 1, "2¹⁶": 2**16, "2²¹": 2**21, "all": 2**40}
NO_SYNC = "no sync, C++"
# Megabytes of DDP's buckets for as many elements.
DDP = {"DDP, buckets of one": "0.000001", "DDP, buckets of 2¹⁶": str(2**18 / 2**20), "DDP, one bucket": "25"}
CELL_SECONDS = 150


def contestants(tools):
    """{column: commands}, and {column: remedy} of what is missing."""
    present, missing = {}, {}
    if os.path.exists(tools.program("bench_step_tutti")):
        for text, fusion in FUSIONS.items():
            present[f"DataParallel, fusion {text}"] = launch(
                tools, WORKERS, "bench_step_tutti", "{socket}", MODEL, "fused", str(fusion))
        for text, fusion in FUSIONS.items():
            present[f"Trainer, top-K 1 %, fusion {text}"] = launch(
                tools, WORKERS, "bench_step_trainer", "{socket}", MODEL, str(WORKERS), "--codec", "topk:0.01",
                "--logical-workers", str(WORKERS), "--fusion", str(fusion))
        present[NO_SYNC] = launch(tools, WORKERS, "bench_step_barrier", "{socket}", MODEL, "fused")
    else:
        missing["Tutti"] = "build with -DTUTTI_TORCH=ON"
    for column, bucket in DDP.items():
        if tools.torch_python:
            present[column] = python(tools, WORKERS, MODEL, "fused", "ddp:" + bucket)
        else:
            missing[column] = NO_PYTHON
    return present, missing


def cells(_, __):
    return {f"{WORKERS} workers": WORKERS}


def measure(tools, settings, left, watch):
    [name] = left
    commands, missing = contestants(tools)

    def parts(column, one):
        return one.ask("traffic")[0][0] if column.startswith("DataParallel") else None

    rounds, buckets = take_turns(commands, WORKERS, settings, watch, missing, parts)
    columns = {column: summary(r) for column, r in rounds.items()}
    for column, cell in columns.items():
        cell["to_no_sync"] = per_round(cell, columns[NO_SYNC]) if NO_SYNC in columns else None
        cell["buckets"] = buckets.get(column)
    yield name, {"workers": WORKERS, "columns": columns, "missing": missing}


def result(values):
    return values[0] if values else {}


def show(result):
    print(marked(f"\n300 tensors of {ELEMENTS} elements in all, {result['workers']} workers, one thread each, "
                 "fused Adam; ms, medians of rounds", result))
    rows = []
    for column, cell in result["columns"].items():
        rows.append([column, "" if cell["buckets"] is None else str(cell["buckets"]),
                     *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                     number(cell["to_no_sync"])])
    print("\n" + table(["", "exchanges", "median", "min", "p99", "÷ no sync"], rows))
    for column, why in result["missing"].items():
        print(f"{column} is missing: {why}")
