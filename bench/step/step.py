"""What does synchronising cost a training step? Tutti beside what people use today, taking turns."""

from common.contestants import Contestant, Failed
from common.report import machine, number, per_round, summary, table
from step.rivals import BASELINE, DDP, TUTTI, WORKERS, rivals

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


def measure(tools, model, optimizer, settings):
    """{column: rounds of nanoseconds}, and what is missing. Fresh processes for each third of the
    rounds, so that where memory happened to land is averaged as well."""
    commands, missing = rivals(tools, model, optimizer)
    environment = {} if settings.system_malloc else KEEP_MEMORY
    rounds = {column: [] for column in commands}
    for restart in range(settings.restarts):
        running = {}
        try:
            for column in commands:
                if column in missing:
                    continue
                try:
                    running[column] = Contestant(column, commands[column], WORKERS, environment)
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
        base = cells.get(BASELINE.get(column))
        cell["ratio_to_no_sync"] = per_round(cell, base) if base else None
        cell["added_us"] = per_round(cell, base, lambda a, b: a - b) if base else None
    ddp, tutti = cells.get(DDP), cells.get(TUTTI)
    if ddp and tutti and ddp["added_us"] is not None and tutti["added_us"] is not None:
        tutti["added_share_of_ddp"] = (
            max(0.0, tutti["added_us"]) / ddp["added_us"] if ddp["added_us"] > 0 else None)
        tutti["ratio_to_ddp"] = per_round(tutti, ddp)
    return cells


def run(tools, settings):
    entries = []
    for model in settings.models:
        for optimizer in OPTIMIZERS:
            settings.progress(f"step, {model}, {optimizer}")
            rounds, missing = measure(tools, model, optimizer, settings)
            cells = derive({column: summary(r) for column, r in rounds.items()})
            entries.append({"model": model, "optimizer": optimizer, "columns": cells, "missing": missing})
    return {"benchmark": "step", "machine": machine(), "settings": settings.values(),
            "workers": WORKERS, "entries": entries}


def show(result):
    print(f"\nTraining step, {result['workers']} workers, one thread each; ms, medians of rounds")
    if result["workers"] > result["machine"]["cores"]:
        print("(more workers than cores)")
    for entry in result["entries"]:
        print(f"\n{MODELS[entry['model']]}, {OPTIMIZERS[entry['optimizer']]}")
        for column, remedy in entry["missing"].items():
            print(f"  {column} is missing: {remedy}")
        rows = []
        for column, cell in entry["columns"].items():
            added = cell["added_us"]
            rows.append([column, *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                         number(cell["ratio_to_no_sync"]), number(None if added is None else added / 1e3)])
        print(table(["", "median", "min", "p99", "ratio to no sync", "added"], rows))
        tutti = entry["columns"].get(TUTTI, {})
        if "ratio_to_ddp" in tutti:
            share, ratio = tutti["added_share_of_ddp"], tutti["ratio_to_ddp"]
            aims = ["step no slower than DDP's: " + verdict(ratio <= 1)]
            if entry["model"] == "mlp":
                aims.append("adds at most 0.2 of it: " + verdict(share is not None and share <= 0.2))
            print(f"Tutti's step takes {number(ratio)} of DDP's; it adds {number(share)} of what DDP adds "
                  f"({'; '.join(aims)})")


def verdict(met):
    return "met" if met else "NOT met"
