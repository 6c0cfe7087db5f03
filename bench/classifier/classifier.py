"""What does the last layer of a classifier cost per step, of ten thousand to ten million classes?"""

import os

from common.contestants import Contestant, Failed
from common.report import all_missing, marked, number, per_round, summary, table
from memory.need import MOST_OF_MACHINE, allowed_bytes
from step.rivals import NO_PYTHON, launch, ranks

PROGRAM = "bench_classifier"
DIM = 64
BATCH = 128  # of all workers
RATE = 0.1
DENSE = "libtorch dense"
CHUNKED = "linear_cross_entropy"
CLASSES = {"10⁴": 10**4, "10⁵": 10**5, "10⁶": 10**6, "10⁷": 10**7}
WORKERS = (1, 2, 4)
CELL_SECONDS = 60
FLOAT = 4


def split(workers, rate=1.0):
    return f"Tutti, {workers}" + (f", {RATE:.0%}" if rate < 1 else "")


def ddp(workers):
    return f"DDP, {workers}"


def needed_bytes(column, classes, workers):
    """At the peak, of all workers together."""
    weights = FLOAT * DIM * classes
    logits = FLOAT * BATCH * classes
    if column.startswith("Tutti"):
        return 2 * weights
    if column == CHUNKED:
        return 3 * weights
    copies = workers if column.startswith("DDP") else 1
    return copies * (3 + (column.startswith("DDP"))) * weights + 3 * logits


def contestants(tools, classes):
    """{column: (commands, workers)} of those that fit, and {column: why not} of the others."""
    here = os.path.dirname(os.path.abspath(__file__))
    present, missing = {}, {}

    def add(column, exists, commands, workers, remedy):
        need = needed_bytes(column, classes, workers)
        if not exists:
            missing[column] = remedy
        elif need > allowed_bytes():
            missing[column] = (f"needs {number(need / 1e9)} GB, {MOST_OF_MACHINE:.0%} of this machine's memory are "
                               f"{number(allowed_bytes() / 1e9)}")
        else:
            present[column] = (commands, workers)

    program = tools.program(PROGRAM)
    size = [str(classes), str(DIM), str(BATCH)]
    for workers in WORKERS:
        for rate in (1.0, RATE):
            add(split(workers, rate), os.path.exists(program),
                launch(tools, workers, PROGRAM, "{socket}", "split", *size, str(rate)), workers,
                "build with -DTUTTI_BENCH=ON")
    add(DENSE, os.path.exists(program), launch(tools, 1, PROGRAM, "{socket}", "dense", *size, "1"), 1,
        "build with -DTUTTI_BENCH=ON")
    script = [tools.torch_python, os.path.join(here, "rival.py"), "{socket}"]
    add(CHUNKED, tools.torch_python, [[*script, "linear_cross_entropy", *size, *rank] for rank in ranks(1)], 1,
        NO_PYTHON)
    add(ddp(2), tools.torch_python, [[*script, "ddp", *size, *rank] for rank in ranks(2)], 2, NO_PYTHON)
    return present, missing


def cells(_, settings):
    names = list(CLASSES)[:1] if settings.quick else CLASSES
    return {f"{name} classes": CLASSES[name] for name in names}


def peak(contestant):
    """Bytes: besides the weights and momentum, of all workers; of the worker with most, in all."""
    answers = contestant.ask("peak")
    return {"extra_bytes": sum(most - weights for most, weights in answers),
            "most_bytes": max(most for most, _ in answers), "weights": sum(weights for _, weights in answers)}


def measure(tools, settings, left, watch):
    for name, classes in left.items():
        present, missing = contestants(tools, classes)
        columns = {}
        # Contestants of so many workers share a turn's processors: they are compared within rounds of their own.
        for workers in WORKERS:
            commands = {c: what for c, (what, size) in present.items() if size == workers or c == split(1)}
            if list(commands) == [split(1)] and workers > 1:
                continue
            sizes = {c: present[c][1] for c in commands}
            found, peaks = turns_of(commands, sizes, settings, watch, missing)
            for column, values in found.items():
                cell = summary(values)
                cell["to_one"] = per_round(summary(found[split(1)]), cell) if split(1) in found else None
                if column != split(1) or workers == 1:
                    columns[column] = {**cell, **peaks[column]}
        yield name, {"classes": classes, "columns": columns, "missing": missing}


def turns_of(commands, sizes, settings, watch, missing):
    """take_turns() of contestants of several sizes."""
    rounds, peaks = {c: [] for c in commands}, {}
    running = {}
    try:
        for column, what in commands.items():
            try:
                running[column] = Contestant(column, what, sizes[column])
                running[column].ask("steps 1")
            except (Failed, OSError) as error:
                missing[column] = str(error)
                running.pop(column, None)
        for turn in range(max(1, settings.rounds)):
            order = list(running)
            shift = turn % max(1, len(order))
            with watch.round():
                for column in order[shift:] + order[:shift]:
                    rounds[column].append(running[column].ask("steps 2")[0])
        for column, one in running.items():
            peaks[column] = peak(one)
    finally:
        for one in running.values():
            one.close()
    return {c: r for c, r in rounds.items() if r and c in peaks}, peaks


def result(values):
    return {"entries": values, "dim": DIM, "batch": BATCH, "missing": all_missing(values)}


def show(result):
    print(f"\nThe last layer, {result['dim']} features, {result['batch']} samples of all workers, SGD with momentum, float32, "
          "a thread each: ms per step,")
    print("median; Tutti on one worker ÷ this, median of rounds; MB besides weights and momentum, all workers")
    for entry in result["entries"]:
        rows = [[column, number(cell["median_us"] / 1e3), number(cell["to_one"]) if cell["to_one"] else "",
                 number(cell["extra_bytes"] / 1e6), number(cell["most_bytes"] / 1e6)]
                for column, cell in entry["columns"].items()]
        print(f"\n{marked(str(entry['classes']), entry)} classes, weights and momentum "
              f"{number(2 * FLOAT * result['dim'] * entry['classes'] / 1e6)} MB")
        print(table(["", "ms", "1 worker ÷ this", "extra MB", "most of a worker, MB"], rows))
        for column, why in entry["missing"].items():
            print(f"  {column}: {why}")
