"""What does a step of a large table cost, of which it looks up a few rows?"""

import os

from common.report import marked, number, per_round, summary, table
from common.turns import take_turns
from step.rivals import NO_PYTHON, bytes_per_step, launch, python

WORKERS = 2
ROWS = "Tutti Trainer, row-sparse"
DENSE = "Tutti Trainer, dense"
ALONE = "no sync, sparse (Python)"
DDP_SPARSE = "DDP, sparse + SparseAdam"
DDP_DENSE = "DDP, dense + fused Adam"
# How many times as long the others' steps take.
AIMS = {DDP_SPARSE: 5, DDP_DENSE: 20}
CELL_SECONDS = 120


def contestants(tools):
    """{column: commands}, and {column: remedy} of what is missing."""
    present, missing = {}, {}
    for column, model in ((ROWS, "sparse_bag"), (DENSE, "bag")):
        if os.path.exists(tools.program("bench_step_trainer")):
            present[column] = launch(tools, WORKERS, "bench_step_trainer", "{socket}", model, str(WORKERS))
        else:
            missing[column] = "build with -DTUTTI_TORCH=ON"
    for column, model, optimizer, way in ((DDP_SPARSE, "sparse_bag", "sparse", "ddp"),
                                          (DDP_DENSE, "bag", "fused", "ddp"),
                                          (ALONE, "sparse_bag", "sparse", "barrier")):
        if tools.torch_python:
            present[column] = python(tools, WORKERS, model, optimizer, way)
        else:
            missing[column] = NO_PYTHON
    return present, missing


def cells(_, __):
    return {f"{WORKERS} workers": WORKERS}


def measure(tools, settings, left, watch):
    [name] = left
    commands, missing = contestants(tools)
    rounds, sizes = take_turns(commands, WORKERS, settings, watch, missing,
                               lambda column, one: bytes_per_step(one) if column in (ROWS, DENSE) else None)
    columns = {column: summary(r) for column, r in rounds.items()}
    for column, cell in columns.items():
        cell["to_rows"] = per_round(cell, columns[ROWS]) if ROWS in columns else None
        if column in sizes:
            cell["bytes_per_step"], cell["dense_bytes"] = sizes[column]
        if column in AIMS:
            cell["aim"] = AIMS[column]
    yield name, {"workers": WORKERS, "columns": columns, "missing": missing}


def result(values):
    return values[0] if values else {}


def show(result):
    print(marked(f"\nEmbeddingBag 200 000×64 and a layer of 10, batch 64×16, {result['workers']} workers, one "
                 "thread each; ms, medians of rounds; bytes of all workers, both ways", result))
    rows = []
    for column, cell in result["columns"].items():
        aim = f" (aim ≥ {cell['aim']})" if "aim" in cell else ""
        rows.append([column, *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                     number(cell["to_rows"]) + aim,
                     number(cell["bytes_per_step"] / 1e6) if "bytes_per_step" in cell else ""])
    print("\n" + table(["", "median", "min", "p99", "÷ row-sparse", "MB/step"], rows))
    for column, why in result["missing"].items():
        print(f"{column} is missing: {why}")
