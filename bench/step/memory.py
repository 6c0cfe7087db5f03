"""How many bytes does synchronising hold per worker? In units of one copy of the gradients."""

from common.contestants import Contestant, Failed
from common.report import machine, number, table
from step.rivals import BASELINE, WORKERS, rivals
from step.step import MODELS

# Parameters of models.cpp in bytes: one copy of the gradients. The convolution net's quarter of a
# megabyte would be lost among pages.
GRADIENT_BYTES = {
    "mlp": 4 * 8 * (1024 * 1024 + 1024),
    "lstm": 4 * (100 * 256 + 4 * 512 * (256 + 512 + 512 + 512) + 4 * 4 * 512 + 512 * 100 + 100),
    "embedding": 4 * (200000 * 64 + 64 * 10 + 10),
}


def measure(commands):
    """Mean over workers: bytes at construction and with three steps' gradients held."""
    contestant = Contestant("memory", commands, WORKERS)
    try:
        answers = contestant.ask("memory")
    finally:
        contestant.close()
    before, wrapped, trained = (sum(stage) / WORKERS for stage in zip(*answers))
    return {"construction_bytes": wrapped - before, "held_bytes": trained - before}


def run(tools, settings):
    entries = []
    for model in (m for m in settings.models if m in GRADIENT_BYTES):
        settings.progress(f"memory, {model}")
        commands, missing = rivals(tools, model, "none")
        cells = {}
        for column, start in commands.items():
            try:
                cells[column] = measure(start)
            except (Failed, OSError) as error:
                missing[column] = str(error)
        gradient = GRADIENT_BYTES[model]
        for column, cell in cells.items():
            base = cells.get(BASELINE.get(column))
            cell["gradient_copies"] = cell["held_bytes"] / gradient
            cell["over_no_sync"] = (cell["held_bytes"] - base["held_bytes"]) / gradient if base else None
        entries.append({"model": model, "gradient_bytes": gradient, "columns": cells, "missing": missing})
    return {"benchmark": "memory", "machine": machine(), "settings": settings.values(),
            "workers": WORKERS, "entries": entries}


def show(result):
    print(f"\nMemory per worker, {result['workers']} workers, after three backward passes, gradients held")
    print("(proportional share of the process beyond the bare model; no optimizer)")
    for entry in result["entries"]:
        print(f"\n{MODELS[entry['model']]}: one copy of the gradients is {number(entry['gradient_bytes'] / 1e6)} MB")
        for column, remedy in entry["missing"].items():
            print(f"  {column} is missing: {remedy}")
        rows = [[column, number(cell["construction_bytes"] / 1e6), number(cell["held_bytes"] / 1e6),
                 number(cell["gradient_copies"]), number(cell["over_no_sync"])]
                for column, cell in entry["columns"].items()]
        print(table(["", "MB at construction", "MB held", "gradient copies", "copies over no sync"], rows))
