"""What does training hold in memory, all workers of a host together? In copies of the parameters."""

from common.contestants import Contestant, Failed
from common.report import all_missing, marked, number, table
from memory.need import MOST_OF_MACHINE, allowed_bytes, needed_bytes, promised
from step.rivals import DDP, NO_SYNC, TRAINER, TUTTI, rivals, trainer

MODELS = {
    "mlp50m": "MLP 12×2048² (50 M parameters)",
    "lstm": "LSTM 2×512, characters",
    "embedding": "EmbeddingBag 200 000×64, dense",
}
WORKERS = {"mlp50m": (1, 2, 4, 8), "lstm": (1, 2), "embedding": (1, 2)}
# One copy of the parameters of each model in models.cpp. The convolution net's quarter of a megabyte would be lost
# among pages.
PARAMETER_BYTES = {
    "mlp50m": 4 * 12 * (2048 * 2048 + 2048),
    "lstm": 4 * (100 * 256 + 4 * 512 * (256 + 512 + 512 + 512) + 4 * 4 * 512 + 512 * 100 + 100),
    "embedding": 4 * (200000 * 64 + 64 * 10 + 10),
}
# A run with a fixed number of shards: fewer workers hold more nodes of the tree each.
SHARDS = 8
TRAINER_SHARDS = f"{TRAINER}, {SHARDS} shards"
COLUMNS = (TRAINER, TRAINER_SHARDS, TUTTI, DDP, NO_SYNC)
STEPS = 3
# A share of what is promised, for libraries' own buffers that grow with the model.
TOLERANCE = 0.05
CELL_SECONDS = 20


def held_bytes(column, commands, workers, watch):
    """Bytes of all workers together: with libtorch but no model, and after some steps in the middle
    of the next, gradients held."""
    contestant = Contestant(column, commands, workers)
    try:
        with watch.round():
            contestant.ask("held")  # When all have answered, all are there.
            baseline = contestant.ask("held")
            contestant.ask(f"steps {STEPS}")
            contestant.ask("gradients")
            held = contestant.ask("held")
    finally:
        contestant.close()
    return sum(bytes_ for [bytes_] in baseline), sum(bytes_ for [bytes_] in held)


def one_row(column, commands, model, workers, watch):
    copies = promised(column, workers, SHARDS if column == TRAINER_SHARDS else workers)
    row = {"column": column, "workers": workers, "promised_copies": copies,
           "needed_bytes": needed_bytes(copies, workers, PARAMETER_BYTES[model])}
    allowed = allowed_bytes()
    if row["needed_bytes"] > allowed:
        row["not_run"] = (f"may need {number(row['needed_bytes'] / 1e6)} MB, {MOST_OF_MACHINE:.0%} of this "
                          f"machine's memory are {number(allowed / 1e6)} MB")
        return row
    baseline, held = held_bytes(column, commands, workers, watch)
    row.update(baseline_bytes=baseline, held_bytes=held, model_bytes=held - baseline,
               copies=(held - baseline) / PARAMETER_BYTES[model])
    row["kept"] = row["copies"] <= copies * (1 + TOLERANCE)
    return row


def split(rows):
    """Least squares of copies = once + per_worker · N: what exists per host, and per worker."""
    points = [(row["workers"], row["copies"]) for row in rows if "copies" in row]
    if len(points) < 2:
        return None
    mean_n, mean_copies = (sum(values) / len(points) for values in zip(*points))
    slope = (sum((n - mean_n) * (copies - mean_copies) for n, copies in points)
             / sum((n - mean_n) ** 2 for n, _ in points))
    return {"once": mean_copies - slope * mean_n, "per_worker": slope}


def cells(_, settings):
    most = 2 if settings.quick else 8
    return {f"{model}, {workers} worker{'s' * (workers > 1)}, {column}": (model, workers, column)
            for model, counts in WORKERS.items() if model in settings.models
            for workers in counts if workers <= most for column in COLUMNS}


def measure(tools, _, left, watch):
    for name, (model, workers, column) in left.items():
        commands, missing = rivals(tools, model, "fused", workers)
        if TRAINER in commands:
            commands[TRAINER_SHARDS] = trainer(tools, model, workers, SHARDS)
        else:
            missing[TRAINER_SHARDS] = missing[TRAINER]
        value = {"model": model, "row": None, "missing": {}}
        try:
            if column in missing:
                raise Failed(missing[column])
            value["row"] = one_row(column, commands[column], model, workers, watch)
        except (Failed, OSError) as error:
            value["missing"][column] = str(error)
        yield name, value


def result(values):
    entries = []
    for model in dict.fromkeys(value["model"] for value in values):
        own = [value for value in values if value["model"] == model]
        rows = [{**value["row"], "disturbed": value["disturbed"]} for value in own if value["row"]]
        rows.sort(key=lambda row: COLUMNS.index(row["column"]))
        # With a fixed number of shards the nodes per worker depend on N: no straight line.
        parts = {column: split([r for r in rows if r["column"] == column])
                 for column in COLUMNS if column != TRAINER_SHARDS}
        entries.append({"model": model, "parameter_bytes": PARAMETER_BYTES[model], "rows": rows,
                        "split": {column: part for column, part in parts.items() if part},
                        "missing": all_missing(own)})
    return {"entries": entries}


def show(result):
    print("\nMemory of all workers together, Adam, gradients held after backward: sum of the processes'")
    print("proportional shares in MB; copies: of the parameters, beyond libtorch without a model")
    for entry in result["entries"]:
        print(f"\n{MODELS[entry['model']]}: one copy is {number(entry['parameter_bytes'] / 1e6)} MB")
        for column, remedy in entry["missing"].items():
            print(f"  {column} is missing: {remedy}")
        for row in (row for row in entry["rows"] if "not_run" in row):
            print(f"  {row['column']}, {row['workers']} workers: not run, {row['not_run']}")
        print(table(["", "workers", "in all", "libtorch", "model", "copies", "promised", ""],
                    [cells_of(row) for row in entry["rows"] if "copies" in row]))
        for column, part in entry["split"].items():
            once, each = number(part["once"]), number(part["per_worker"])
            print(f"{column}: about {once} copies per host and {each} per worker")


def cells_of(row):
    """Only Tutti's columns promise anything."""
    sizes = [number(row[key] / 1e6) for key in ("held_bytes", "baseline_bytes", "model_bytes")]
    ours = row["column"].startswith("Tutti")
    aim = [f"≤ {row['promised_copies']}", "met" if row["kept"] else "NOT met"] if ours else ["", ""]
    return [marked(row["column"], row), row["workers"], *sizes, number(row["copies"]), *aim]
