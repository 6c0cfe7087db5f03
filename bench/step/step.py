"""What does synchronising cost a training step? Tutti beside what people use today, taking turns."""

import itertools

from common.contestants import Contestant, Failed
from common.report import machine, number, per_round, summary, table
from step import aims
from step.rivals import BASELINE, DDP, rivals

MODELS = {
    "mlp": "MLP 8×1024², batch 16 (34 MB)",
    "lstm": "LSTM 2×512, characters, 8×64 (15 MB)",
    "convolution": "small convolution net (0.2 MB)",
    "embedding": "EmbeddingBag 200 000×64, dense (51 MB)",
}
OPTIMIZERS = {"adam": "Adam", "fused": "fused Adam"}
WARM_UP = 5
# glibc returns freed gradients to the system or keeps them depending on the order in which they are
# freed: luck that costs some programs thousands of page faults per step. All are told to keep them.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**40)}


def measure(tools, model, optimizer, workers, settings):
    """{column: rounds of nanoseconds}, and what is missing. Fresh processes for each third of the
    rounds, so that where memory happened to land is averaged as well."""
    commands, missing = rivals(tools, model, optimizer, workers)
    environment = {} if settings.system_malloc else KEEP_MEMORY
    rounds = {column: [] for column in commands}
    for restart in range(settings.restarts):
        running = {}
        try:
            for column in commands:
                if column in missing:
                    continue
                try:
                    running[column] = Contestant(column, commands[column], workers, environment)
                    running[column].ask(f"steps {WARM_UP}")
                except (Failed, OSError) as error:
                    missing[column] = str(error)
            order = [c for c in running if c not in missing]
            for turn in range(max(1, settings.rounds // settings.restarts)):
                shift = (turn + restart) % max(1, len(order))
                for column in order[shift:] + order[:shift]:
                    rounds[column].append(running[column].ask(f"steps {settings.steps + 1}")[0][1:])
        finally:
            for contestant in running.values():
                contestant.close()
    return {c: r for c, r in rounds.items() if r and c not in missing}, missing


def derive(cells):
    for column, cell in cells.items():
        base, ddp = cells.get(BASELINE.get(column)), cells.get(DDP)
        cell["ratio_to_no_sync"] = per_round(cell, base) if base else None
        cell["added_us"] = per_round(cell, base, lambda a, b: a - b) if base else None
        cell["ratio_to_ddp"] = per_round(cell, ddp) if ddp and cell is not ddp else None
    added = cells.get(DDP, {}).get("added_us")
    for cell in cells.values():
        known = cell["added_us"] is not None and added is not None and added > 0
        cell["added_share_of_ddp"] = max(0.0, cell["added_us"]) / added if known else None
    return cells


def run(tools, settings):
    entries = []
    for workers, model, optimizer in itertools.product(settings.workers, MODELS, OPTIMIZERS):
        if model not in settings.models:
            continue
        settings.progress(f"step, {workers} workers, {model}, {optimizer}")
        rounds, missing = measure(tools, model, optimizer, workers, settings)
        cells = derive({column: summary(r) for column, r in rounds.items()})
        entries.append({"workers": workers, "model": model, "optimizer": optimizer, "columns": cells,
                        "oversubscribed": workers > tools.cores, "missing": missing,
                        "aims": aims.judge(model, optimizer, cells)})
    return {"benchmark": "step", "machine": machine(), "settings": settings.values(), "entries": entries}


def show(result):
    print("\nTraining step, one thread per worker; ms, medians of rounds")
    for entry in result["entries"]:
        note = " (more workers than cores)" if entry["oversubscribed"] else ""
        title = f"{MODELS[entry['model']]}, {OPTIMIZERS[entry['optimizer']]}"
        print(f"\n{entry['workers']} workers{note}, {title}")
        for column, remedy in entry["missing"].items():
            print(f"  {column} is missing: {remedy}")
        rows = []
        for column, cell in entry["columns"].items():
            added = cell["added_us"]
            rows.append([column, *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                         number(cell["ratio_to_no_sync"]), number(None if added is None else added / 1e3),
                         number(cell["ratio_to_ddp"])])
        print(table(["", "median", "min", "p99", "ratio to no sync", "added", "ratio to DDP"], rows))
        if entry["aims"]:
            print("\n" + table(["", "", "aim", ""], aims.rows(entry["aims"])))
