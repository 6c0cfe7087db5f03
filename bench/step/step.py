"""What does synchronising cost a training step? Tutti beside what people use today, taking turns."""

import itertools

from common.report import marked, number, per_round, summary, table
from common.turns import take_turns
from step import aims
from step.rivals import BASELINE, BEFORE, DDP, ONE_PROCESS, one_process, rivals

MODELS = {
    "mlp": "MLP 8×1024², batch 16 (34 MB)",
    "lstm": "LSTM 2×512, characters, 8×64 (15 MB)",
    "convolution": "small convolution net (0.2 MB)",
    "embedding": "EmbeddingBag 200 000×64, dense (51 MB)",
}
OPTIMIZERS = {"adam": "Adam", "fused": "fused Adam"}
CELL_SECONDS = 90


def derive(cells):
    for column, cell in cells.items():
        base, ddp, alone = cells.get(BASELINE.get(column)), cells.get(DDP), cells.get(ONE_PROCESS)
        before = cells.get(column + BEFORE)
        cell["ratio_to_before"] = per_round(cell, before) if before else None
        cell["ratio_to_no_sync"] = per_round(cell, base) if base else None
        cell["added_us"] = per_round(cell, base, lambda a, b: a - b) if base else None
        cell["ratio_to_ddp"] = per_round(cell, ddp) if ddp and cell is not ddp else None
        cell["ratio_to_one_process"] = per_round(cell, alone) if alone and cell is not alone else None
    added = cells.get(DDP, {}).get("added_us")
    for cell in cells.values():
        known = cell["added_us"] is not None and added is not None and added > 0
        cell["added_share_of_ddp"] = max(0.0, cell["added_us"]) / added if known else None
    return cells


def cells(_, settings):
    every = itertools.product(settings.workers, (m for m in MODELS if m in settings.models), OPTIMIZERS)
    return {f"{workers} workers, {model}, {optimizer}": (workers, model, optimizer)
            for workers, model, optimizer in every}


def measure(tools, settings, left, watch):
    for name, (workers, model, optimizer) in left.items():
        commands, missing = rivals(tools, model, optimizer, workers)
        if not tools.before:
            commands |= one_process(tools, model, optimizer, workers)
        rounds, _ = take_turns(commands, workers, settings, watch, missing, one_process=(ONE_PROCESS,))
        columns = derive({column: summary(r) for column, r in rounds.items()})
        yield name, {"workers": workers, "model": model, "optimizer": optimizer, "columns": columns,
                     "oversubscribed": workers > tools.cores, "missing": missing,
                     "aims": aims.judge(model, optimizer, columns)}


def result(values):
    return {"entries": values}


def show(result):
    print("\nTraining step, one thread per worker; ms, medians of rounds")
    for entry in result["entries"]:
        note = " (more workers than cores)" if entry["oversubscribed"] else ""
        title = f"{MODELS[entry['model']]}, {OPTIMIZERS[entry['optimizer']]}"
        print("\n" + marked(f"{entry['workers']} workers{note}, {title}", entry))
        for column, remedy in entry["missing"].items():
            print(f"  {column} is missing: {remedy}")
        rows = []
        for column, cell in entry["columns"].items():
            added = cell["added_us"]
            rows.append([column, *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                         number(cell["ratio_to_no_sync"]), number(None if added is None else added / 1e3),
                         number(cell["ratio_to_ddp"]), number(cell["ratio_to_one_process"]),
                         number(cell.get("ratio_to_before"))])
        print(table(["", "median", "min", "p99", "ratio to no sync", "added", "ratio to DDP",
                     "ratio to one process", "ratio to before"], rows))
        if entry["aims"]:
            print("\n" + table(["", "", "aim", ""], aims.rows(entry["aims"])))
