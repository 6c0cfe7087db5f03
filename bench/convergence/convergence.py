"""What does a codec or an averaging policy cost in loss? The character model of examples/02, on a text that never
changes."""

import json
import os
import statistics
import tempfile

from common.programs import output_of
from common.report import all_missing, number, table
from convergence.text import SHA256, fixed_text

ADAM = ["--optimizer", "adam", "--learning-rate", "0.01"]
SLOWER = ["--optimizer", "adam", "--learning-rate"]
PLAIN_SGD = ["--optimizer", "sgd", "--learning-rate", "0.3"]
MOMENTUM = ["--optimizer", "sgd:0.9", "--learning-rate", "0.3"]
CORRECTED = [*PLAIN_SGD, "--momentum-correction", "0.9"]
# By the optimizer's name: name of a run, and options of char_lm beside those of all. The first is dense.
RUNS = {"Adam": {
    "dense": [],
    "half": ["--codec", "half"],
    "bfloat16": ["--codec", "bfloat16"],
    "int8": ["--codec", "int8"],
    "int8, no feedback": ["--codec", "int8", "--error-feedback", "off"],
    "threshold 0.01": ["--codec", "threshold:0.01"],
    "top-K 10 %": ["--codec", "topk:0.1"],
    "top-K 10 %, no feedback": ["--codec", "topk:0.1", "--error-feedback", "off"],
    "top-K 1 %": ["--codec", "topk:0.01"],
    "top-K 1 %, no feedback": ["--codec", "topk:0.01", "--error-feedback", "off"],
    "local SGD, 8 steps": ["--averaging", "local-sgd:8"],
    "local SGD, state averaged": ["--averaging", "local-sgd:8", "--state-at-averaging", "average"],
    "local SGD, state reset": ["--averaging", "local-sgd:8", "--state-at-averaging", "reset"],
    "block momentum, 8 steps": ["--averaging", "bmuf:8"],
    "partial, buckets of 2¹⁴": ["--averaging", "partial", "--fusion", "16384"],
    "local SGD, 32 steps": ["--averaging", "local-sgd:32"],
    "block momentum, 32 steps": ["--averaging", "bmuf:32"],
    "DiLoCo, 32 steps": ["--averaging", "diloco:32"],
    "DiLoCo, 32 steps, 4 fragments": ["--averaging", "diloco:32,fragments=4"],
    "DiLoCo, 32 steps, 8 bits": ["--averaging", "diloco:32,int8"],
    "DiLoCo, 32 steps, overlap of 8": ["--averaging", "diloco:32,overlap=8"],
    "DiLoCo, 32 steps, no warm-up": ["--averaging", "diloco:32,warm-up=0"],
}, "Adam, long": {
    "long, dense": [*SLOWER, "0.005"],
    "long, dense, rate 0.01": [*SLOWER, "0.01"],
    "long, dense, rate 0.003": [*SLOWER, "0.003"],
    "long, DiLoCo, 32 steps": [*SLOWER, "0.003", "--averaging", "diloco:32"],
    "long, DiLoCo, 32 steps, 4 fragments": [*SLOWER, "0.003", "--averaging", "diloco:32,fragments=4"],
    "long, DiLoCo, 32 steps, rate 0.005": [*SLOWER, "0.005", "--averaging", "diloco:32"],
    "long, DiLoCo, 32 steps, rate 0.01": [*SLOWER, "0.01", "--averaging", "diloco:32"],
    "long, block momentum, 32 steps, rate 0.01": [*SLOWER, "0.01", "--averaging", "bmuf:32"],
}, "SGD with momentum": {
    "SGD, dense": MOMENTUM,
    "SGD, top-K 1 %": [*MOMENTUM, "--codec", "topk:0.01"],
    "SGD, top-K 1 %, corrected": [*CORRECTED, "--codec", "topk:0.01"],
    "SGD, top-K 0.1 %": [*MOMENTUM, "--codec", "topk:0.001"],
    "SGD, top-K 0.1 %, corrected": [*CORRECTED, "--codec", "topk:0.001"],
    "SGD, top-K 0.1 %, corrected, warm-up": [*CORRECTED, "--codec", "topk:0.001:80"],
}}
PROGRAM = "char_lm"
LOGICAL_WORKERS = 4
SEEDS = (1, 2, 3)
LONG = "Adam, long"
STEPS, LONG_STEPS, QUICK_STEPS = 300, 1200, 30
LONG_SEEDS = (1,)
LAST = 20  # losses whose mean is compared
ROWS = 8  # batch of a shard
# Loss ÷ dense: at least, at most.
AIMS = {"top-K 10 %": (None, 1.03), "top-K 10 %, no feedback": (1.05, None),
        "DiLoCo, 32 steps": (None, 1.05), "DiLoCo, 32 steps, 4 fragments": (None, 1.05),
        "long, DiLoCo, 32 steps": (None, 1.05), "long, DiLoCo, 32 steps, 4 fragments": (None, 1.05)}
SHARE_AT_ONE_PERCENT = 2 / 3
CELL_SECONDS = 20
# Losses do not depend on time: other users of the machine change no bit of them.
TIMED = False


def losses(tools, text, options, steps, seed, watch):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        command = [tools.program(PROGRAM), "--text", text, "--rows", str(ROWS),
                   "--shards", str(LOGICAL_WORKERS),
                   "--logical-workers", str(LOGICAL_WORKERS), "--steps", str(steps), "--seed", str(seed),
                   "--sample", "0", "--quiet", "--log", log, *(options if "--optimizer" in options else ADAM + options)]
        output_of(command, watch, {"OMP_NUM_THREADS": "1"})
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    return [line["loss"] for line in lines if line.get("kind") == "metrics"]


def cells(_, settings):
    return {f"{name}, seed {seed}": (optimizer, name, options, seed) for optimizer, runs in RUNS.items()
            for name, options in runs.items() for seed in seeds_of(optimizer, settings)}


def seeds_of(optimizer, settings):
    return SEEDS[:1] if settings.quick else LONG_SEEDS if optimizer == LONG else SEEDS


def steps_of(optimizer, settings):
    return QUICK_STEPS if settings.quick else LONG_STEPS if optimizer == LONG else STEPS


def measure(tools, settings, left, watch):
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "wb") as file:
            file.write(fixed_text())
        for cell, (optimizer, name, options, seed) in left.items():
            if not os.path.exists(tools.program(PROGRAM)):
                yield cell, {"missing": {PROGRAM: "build with -DTUTTI_TORCH=ON"}}
                continue
            yield cell, {"name": name, "optimizer": optimizer, "options": options, "seed": seed,
                         "losses": losses(tools, text, options, steps_of(optimizer, settings), seed, watch), "missing": {}}


def result(values):
    """Ratios are of the same seeds: a run that has not ended has fewer of some."""
    missing = all_missing(values)
    values = [value for value in values if not value["missing"]]
    means = {(v["name"], v["seed"]): statistics.fmean(v["losses"][-LAST:]) for v in values}
    entries = []
    for optimizer, runs in RUNS.items():
        dense = next(iter(runs))
        for name, options in runs.items():
            curves = {v["seed"]: v["losses"] for v in values if v["name"] == name}
            if not curves:
                continue
            mean = statistics.fmean(means[name, seed] for seed in curves)
            entries.append({"name": name, "optimizer": optimizer, "options": options, "mean_of_last": mean,
                            "seeds": list(curves), "steps": len(next(iter(curves.values()))),
                            "to_dense": mean / statistics.fmean(means[dense, seed] for seed in curves),
                            "curve": [statistics.fmean(step) for step in zip(*curves.values())]})
    return {"steps": len(values[0]["losses"]) if values else 0, "logical_workers": LOGICAL_WORKERS,
            "seeds": sorted({v["seed"] for v in values}), "text_sha256": SHA256, "entries": entries,
            "missing": missing}


def show(result):
    rows = []
    ratios = {entry["name"]: entry["to_dense"] for entry in result["entries"]}
    for entry in result["entries"]:
        least, most = AIMS.get(entry["name"], (None, None))
        aim = f"≤ {most}" if most else f"≥ {least}" if least else ""
        rows.append([entry["name"], entry["steps"], number(entry["mean_of_last"], 4), number(entry["to_dense"], 4),
                     aim])
    print(f"\nMean of the last {LAST} losses, {len(result['seeds'])} seeds (long runs {len(LONG_SEEDS)}), "
          f"{result['logical_workers']} logical workers\n")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    print(table(["", "steps", "loss", "÷ dense", "aim"], rows))
    if not {"top-K 1 %", "top-K 1 %, no feedback"} <= ratios.keys():
        return
    share = (ratios["top-K 1 %"] - 1) / (ratios["top-K 1 %, no feedback"] - 1)
    print(f"\ntop-K 1 %: with feedback {number(share)} of the distance to dense without "
          f"(aim: at most {number(SHARE_AT_ONE_PERCENT)})")
