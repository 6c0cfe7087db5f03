"""How near is a pipeline on two workers to what its schedule allows?"""

import os
import statistics

from common.contestants import Contestant, Failed
from common.report import all_missing, marked, number, per_round, summary, table
from common.turns import KEEP_MEMORY, order_of
from step.rivals import NO_PYTHON, launch, ranks

PROGRAM = "bench_pipeline"
WORKERS = 2
MICRO_BATCHES = 8
SCHEDULES = ("gpipe", "1f1b", "zb-h1")  # in the order of the program's bounds
PARTS = ("forward", "backward, input's half", "backward, weights' half", "whole backward")
ONE, ALONE = "Tutti, one worker", "stages alone"
ONE_PYTHON = "Python, one process"
# What one stage gives another, both ways: activations and their gradients, [2, 64, 256] of float32.
MOVED_BYTES = 2 * MICRO_BATCHES * 2 * 64 * 256 * 4
AIM = 0.9  # of the schedule's own time
WARM_UP, STEPS, SAMPLES, UPDATES = 3, 3, 8, 3
CELL_SECONDS = 300


def ours(schedule):
    return f"Tutti, {schedule}"


def rival(schedule):
    return f"PyTorch, {schedule}"


def contestants(tools):
    """{column: (commands, workers)}, and {column: remedy} of what is missing."""
    present, missing = {}, {}
    for column, way, workers in [(ONE, "none", 1), (ALONE, "alone", WORKERS),
                                 *((ours(s), s, WORKERS) for s in SCHEDULES)]:
        if os.path.exists(tools.program(PROGRAM)):
            present[column] = (launch(tools, workers, PROGRAM, "{socket}", way), workers)
        else:
            missing[column] = "build with -DTUTTI_BENCH=ON"
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rival.py")
    for column, way, workers in [(ONE_PYTHON, "none", 1), *((rival(s), s, WORKERS) for s in SCHEDULES[:2])]:
        if tools.torch_python:
            present[column] = ([[tools.torch_python, script, "{socket}", *rank, way] for rank in ranks(workers)],
                               workers)
        else:
            missing[column] = NO_PYTHON
    return present, missing


def start(present, settings, missing):
    running = {}
    environment = {} if settings.system_malloc else KEEP_MEMORY
    for column, (commands, workers) in present.items():
        if column in missing:
            continue
        try:
            running[column] = Contestant(column, commands, workers, environment)
            running[column].ask(f"bounds {SAMPLES}" if column == ALONE else f"steps {WARM_UP}")
        except (Failed, OSError) as error:
            missing[column] = str(error)
    return running


def turns_of(present, settings, watch, missing):
    """{column: rounds of nanoseconds}, rounds of bounds, rounds of updates, and {column: the most bytes of each
    worker}."""
    rounds = {column: [] for column in present if column != ALONE}
    bounds, updates, peaks = [], [], {}
    for restart in range(settings.restarts):
        running = {}
        try:
            running = start(present, settings, missing)
            order = [column for column in running if column not in missing]
            for turn in range(max(1, settings.rounds // settings.restarts)):
                with watch.round():
                    for column in order_of(order, restart * settings.rounds + turn):
                        if column == ALONE:
                            bounds.append(running[column].ask(f"bounds {SAMPLES}")[0])
                            continue
                        rounds[column].append(running[column].ask(f"steps {STEPS + 1}")[0][1:])
                        if column == ONE:
                            updates.append(running[column].ask(f"update {UPDATES}")[0])
            for column in order:
                if column != ALONE:
                    peaks[column] = [most for [most] in running[column].ask("peak")]
        finally:
            for contestant in running.values():
                contestant.close()
    return {c: r for c, r in rounds.items() if r and c not in missing}, bounds, updates, peaks


def ideals(bounds, updates):
    """{column: rounds of nanoseconds}: the schedule's own time, and the update, which all workers share."""
    return {ours(schedule): [[times[k] + statistics.median(update) / WORKERS] for times, update in zip(bounds, updates)]
            for k, schedule in enumerate(SCHEDULES)}


def parts_of(bounds):
    """{stage: {part: milliseconds}}, medians of rounds."""
    medians = [statistics.median(values) / 1e6 for values in zip(*bounds)][len(SCHEDULES):]
    return {str(stage): dict(zip(PARTS, medians[stage * len(PARTS):])) for stage in range(WORKERS)}


def cells(_, settings):
    return {"8 blocks": None}


def measure(tools, settings, left, watch):
    for name in left:
        present, missing = contestants(tools)
        rounds, bounds, updates, peaks = turns_of(present, settings, watch, missing)
        columns = {column: summary(values) for column, values in rounds.items()}
        ideal = ideals(bounds, updates)
        for column, cell in columns.items():
            one = columns.get(ONE if column.startswith("Tutti") else ONE_PYTHON)
            cell["to_one"] = per_round(one, cell) if one else None
            cell["peak_bytes"] = peaks[column]
            own = summary(ideal[column]) if ideal.get(column) else None
            cell["ideal_us"] = own["median_us"] if own else None
            cell["share"] = per_round(own, cell) if own else None
        yield name, {"name": name, "columns": columns, "parts": parts_of(bounds) if bounds else {},
                     "update_us": statistics.median(v for u in updates for v in u) / 1e3 if updates else None,
                     "moved_bytes": MOVED_BYTES, "missing": missing}


def result(values):
    return {"entries": values, "missing": all_missing(values)}


def verdict(cell):
    if cell["share"] is None:
        return ""
    return f"≥ {AIM}: {'met' if cell['share'] >= AIM else 'NOT met'}"


def milliseconds(microseconds):
    return number(None if microseconds is None else microseconds / 1e3)


def show(result):
    most = MICRO_BATCHES * WORKERS / (MICRO_BATCHES + WORKERS - 1)
    print("\nA step of 8 blocks over 8 micro-batches, a thread for each worker; ms, medians of rounds. ideal: what simulate() "
          "makes of the\nstages' own times, both measured at once without a transfer, and a half of one worker's update; "
          f"× one: beside one worker\nof the same program, with gpipe and 1f1b {number(most)} at most; MB: the most of "
          "libtorch's allocator, of each worker")
    for what, remedy in result["missing"].items():
        print(f"  {what} is missing: {remedy}")
    for entry in result["entries"]:
        print("\n" + marked(entry["name"], entry))
        rows = [[column, milliseconds(cell["median_us"]), milliseconds(cell["min_us"]), milliseconds(cell["ideal_us"]),
                 number(cell["share"]), number(cell["to_one"]), ", ".join(number(b / 1e6) for b in cell["peak_bytes"]),
                 verdict(cell)] for column, cell in entry["columns"].items()]
        print(table(["", "median", "min", "ideal", "ideal ÷ median", "× one", "MB", "aim"], rows))
        for stage, parts in entry["parts"].items():
            print(f"stage {stage}, a micro-batch alone: "
                  + ", ".join(f"{part} {number(ms)} ms" for part, ms in parts.items()))
        print(f"one worker's update {milliseconds(entry['update_us'])} ms; between the stages "
              f"{number(entry['moved_bytes'] / 1e6)} MB of activations and gradients per step")
