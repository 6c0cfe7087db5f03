"""What does the last layer of a classifier cost per step, of ten thousand to ten million classes?"""

import os

from common.contestants import Contestant, Failed
from common.report import all_missing, marked, number, per_round, summary, table
from common.turns import order_of
from memory.need import MOST_OF_MACHINE, allowed_bytes
from step.rivals import NO_PYTHON, launch, ranks

PROGRAM = "bench_classifier"
DIM = 64
BATCH = 128  # of all workers
RATE = 0.1
DENSE = "libtorch dense"
ROWS = (0, 32)  # samples at a time; 0: torch's choice, which is 1. Of 8, 32 and 128, 32 is the fastest.
MOST_ROW_BY_ROW = 10**6  # beyond it a step takes more than a minute
AT_LEAST, AIMED = 0.6, 10**7  # of the bound, with so many classes
CLASSES = {"10⁴": 10**4, "10⁵": 10**5, "10⁶": 10**6, "10⁷": 10**7}
WORKERS = (1, 2, 4)
CELL_SECONDS = 300
FLOAT = 4


def split(workers, rate=1.0):
    return f"Tutti, {workers}" + (f", {RATE:.0%}" if rate < 1 else "")


def ddp(workers):
    return f"DDP, {workers}"


def chunked(rows):
    return "linear_cross_entropy" + (f", {rows} rows" if rows else "")


def bound(workers):
    """What does the products of a step, and moves its memory."""
    return f"bound, {workers}"


def needed_bytes(column, classes, workers):
    """At the peak, of all workers together."""
    weights = FLOAT * DIM * classes
    logits = FLOAT * BATCH * classes
    if column.startswith("Tutti"):
        return 2 * weights
    if column.startswith("bound"):
        return 2 * FLOAT * DIM * min(classes, 10**6)
    for rows in ROWS:
        if column == chunked(rows):
            return 3 * weights + max(1, rows) * logits // BATCH
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
        elif column == chunked(0) and classes > MOST_ROW_BY_ROW:
            missing[column] = "it computes one sample at a time: a step takes more than a minute"
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
        add(bound(workers), os.path.exists(program), launch(tools, workers, PROGRAM, "{socket}", "bound", *size, "1"),
            workers, "build with -DTUTTI_BENCH=ON")
    add(DENSE, os.path.exists(program), launch(tools, 1, PROGRAM, "{socket}", "dense", *size, "1"), 1,
        "build with -DTUTTI_BENCH=ON")
    script = [tools.torch_python, os.path.join(here, "rival.py"), "{socket}"]
    for rows in ROWS:
        add(chunked(rows), tools.torch_python,
            [[*script, f"chunked:{rows}", *size, *rank] for rank in ranks(1)], 1, NO_PYTHON)
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


def together(present, classes):
    """Contestants that take turns: of as many workers, since turns share the processors, and as many as this machine
    has memory for. Each set has Tutti on one worker, beside which all others are shown, and the bound of its workers."""
    for workers in WORKERS:
        always = [column for column in (split(1), bound(workers)) if column in present]
        room = allowed_bytes() - sum(needed_bytes(column, classes, 1) for column in always)
        sets = [[]]
        taken = 0
        for column, (_, size) in present.items():
            if size != workers or column in always:
                continue
            need = needed_bytes(column, classes, size)
            if sets[-1] and taken + need > room:
                sets.append([])
                taken = 0
            sets[-1].append(column)
            taken += need
        yield from ([*always, *columns] for columns in sets if columns)


def measure(tools, settings, left, watch):
    for name, classes in left.items():
        present, missing = contestants(tools, classes)
        columns, bounds = {}, {}
        for members in together(present, classes):
            found, peaks, streams = turns_of({c: present[c] for c in members}, settings, watch, missing)
            one = summary(found[split(1)]) if split(1) in found else None
            for column, values in found.items():
                cell = summary(values)
                limit = bound(present[column][1])
                if column == limit:
                    bounds.setdefault(column, bound_of(cell, summary(streams[column])))
                    continue
                cell["to_one"] = per_round(one, cell) if one else None
                # The limit is that of the same rounds, and of the classes that take part.
                share = RATE if column == split(present[column][1], RATE) else 1
                least = bound_of(summary(found[limit]), summary(streams[limit])) if limit in found else None
                cell["of_bound"] = share * per_round(least, cell) if least else None
                columns.setdefault(column, {**cell, **peaks[column]})
        yield name, {"classes": classes, "columns": columns, "bounds": bounds, "missing": missing}


def bound_of(products, streams):
    """In each round the larger of both."""
    rounds = [max(both) for both in zip(products["round_medians_us"], streams["round_medians_us"])]
    return {"products_us": products["median_us"], "streams_us": streams["median_us"], "round_medians_us": rounds}


def turns_of(contenders, settings, watch, missing):
    """Rounds of all of them, in which a bound has two answers, and the peaks of the others."""
    rounds, streams = {c: [] for c in contenders}, {c: [] for c in contenders}
    running, peaks = {}, {}
    try:
        for column, (what, size) in contenders.items():
            try:
                running[column] = Contestant(column, what, size)
                running[column].ask("steps 1")
            except (Failed, OSError) as error:
                missing[column] = str(error)
                if column in running:
                    running.pop(column).close()
        for turn in range(max(1, settings.rounds)):
            with watch.round():
                for column in order_of(running, turn):
                    rounds[column].append(running[column].ask("steps 2")[0])
                    if column.startswith("bound"):
                        streams[column].append(running[column].ask("streams 2")[0])
        for column, one in running.items():
            peaks[column] = None if column.startswith("bound") else peak(one)
    finally:
        for one in running.values():
            one.close()
    return {c: r for c, r in rounds.items() if c in peaks}, peaks, streams


def result(values):
    return {"entries": values, "dim": DIM, "batch": BATCH, "missing": all_missing(values)}


def met(result, entry, column, cell):
    """Of the aim; None where there is none: fewer classes, some of them left out, a rival, workers that share a core."""
    aimed = [split(workers) for workers in WORKERS if workers <= result["run"]["cores"]]
    if entry["classes"] < AIMED or column not in aimed or cell["of_bound"] is None:
        return None
    return cell["of_bound"] >= AT_LEAST


def show(result):
    print(f"\nThe last layer, {result['dim']} features, {result['batch']} samples of all workers, SGD with momentum, float32, "
          "a thread each: ms per step,")
    print("median; Tutti on one worker ÷ this, median of rounds; MB besides weights and momentum, all workers. Bound: the")
    print("larger of a step's four products and of the memory that it moves, each alone on as many workers; of bound:")
    print(f"bound ÷ this, median of rounds (≥ {AT_LEAST} is aimed at for {AIMED} classes)")
    for entry in result["entries"]:
        rows = [[column, number(cell["median_us"] / 1e3), number(cell["to_one"]), number(cell["of_bound"]),
                 {None: "", True: "met", False: "NOT met"}[met(result, entry, column, cell)],
                 number(cell["extra_bytes"] / 1e6), number(cell["most_bytes"] / 1e6)]
                for column, cell in entry["columns"].items()]
        print(f"\n{marked(str(entry['classes']), entry)} classes, weights and momentum "
              f"{number(2 * FLOAT * result['dim'] * entry['classes'] / 1e6)} MB")
        print(table(["", "ms", "1 worker ÷ this", "of bound", "", "extra MB", "most of a worker, MB"], rows))
        for column, limit in entry["bounds"].items():
            flops = 8 * result["batch"] * result["dim"] * entry["classes"]
            moved = 5 * FLOAT * result["dim"] * entry["classes"]
            print(f"  {column}: products {number(limit['products_us'] / 1e3)} ms "
                  f"({number(flops / limit['products_us'] / 1e3)} GFLOP/s), memory {number(limit['streams_us'] / 1e3)} ms "
                  f"({number(moved / limit['streams_us'] / 1e3)} GB/s)")
        for column, why in entry["missing"].items():
            print(f"  {column}: {why}")
