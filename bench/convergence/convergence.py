"""What does a codec or an averaging policy cost in loss? The character model of examples/02, on this project's documentation."""

import glob
import json
import os
import statistics
import subprocess
import tempfile

from common.report import machine, number, table

ADAM = ["--optimizer", "adam", "--learning-rate", "0.01"]
PLAIN_SGD = ["--optimizer", "sgd", "--learning-rate", "0.3"]
MOMENTUM = ["--optimizer", "sgd:0.9", "--learning-rate", "0.3"]
CORRECTED = [*PLAIN_SGD, "--momentum-correction", "0.9"]
# By the optimizer's name: name of a run, and options of char_lm beside those of all. The first is dense.
RUNS = {"Adam": {
    "dense": [],
    "half": ["--codec", "half"],
    "bfloat16": ["--codec", "bfloat16"],
    "threshold 0.01": ["--codec", "threshold:0.01"],
    "top-K 10 %": ["--codec", "topk:0.1"],
    "top-K 10 %, no feedback": ["--codec", "topk:0.1", "--error-feedback", "off"],
    "top-K 1 %": ["--codec", "topk:0.01"],
    "top-K 1 %, no feedback": ["--codec", "topk:0.01", "--error-feedback", "off"],
    "local SGD, 8 steps": ["--averaging", "local-sgd:8"],
    "local SGD, state averaged": ["--averaging", "local-sgd:8", "--state-at-averaging", "average"],
    "local SGD, state reset": ["--averaging", "local-sgd:8", "--state-at-averaging", "reset"],
    "block momentum, 8 steps": ["--averaging", "bmuf:8"],
    "partial, groups of 2¹⁴": ["--averaging", "partial", "--fusion", "16384"],
}, "SGD with momentum": {
    "SGD, dense": MOMENTUM,
    "SGD, top-K 1 %": [*MOMENTUM, "--codec", "topk:0.01"],
    "SGD, top-K 1 %, corrected": [*CORRECTED, "--codec", "topk:0.01"],
    "SGD, top-K 0.1 %": [*MOMENTUM, "--codec", "topk:0.001"],
    "SGD, top-K 0.1 %, corrected": [*CORRECTED, "--codec", "topk:0.001"],
    "SGD, top-K 0.1 %, corrected, warm-up": [*CORRECTED, "--codec", "topk:0.001:80"],
}}
LOGICAL_WORKERS = 4
SEEDS = (1, 2, 3)
LAST = 20  # losses whose mean is compared
PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
ROWS = 8  # batch of a shard
# Of dense; of the distance to dense without feedback.
AIMS = {"top-K 10 %": (None, 1.03), "top-K 10 %, no feedback": (1.05, None)}
SHARE_AT_ONE_PERCENT = 2 / 3


def write_documentation(path):
    pages = [os.path.join(PROJECT, "README.md"), *sorted(glob.glob(os.path.join(PROJECT, "docs", "*.md")))]
    with open(path, "w", encoding="utf-8") as text:
        for page in pages:
            with open(page, encoding="utf-8") as file:
                text.write(file.read())


def losses(tools, text, options, steps, seed):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        command = [tools.program("char_lm"), "--text", text, "--rows", str(ROWS),
                   "--shards", str(LOGICAL_WORKERS),
                   "--logical-workers", str(LOGICAL_WORKERS), "--steps", str(steps), "--seed", str(seed),
                   "--sample", "0", "--quiet", "--log", log, *(options if "--optimizer" in options else ADAM + options)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**os.environ, "OMP_NUM_THREADS": "1"})
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    return [line["loss"] for line in lines if line.get("kind") == "metrics"]


def run(tools, settings):
    steps = 30 if settings.quick else 300
    seeds = SEEDS[:1] if settings.quick else SEEDS
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        write_documentation(text)
        for optimizer, runs in RUNS.items():
            dense = None
            for name, options in runs.items():
                settings.progress(f"convergence: {name}")
                curves = [losses(tools, text, options, steps, seed) for seed in seeds]
                mean = statistics.fmean(statistics.fmean(curve[-LAST:]) for curve in curves)
                dense = dense or mean
                entries.append({"name": name, "optimizer": optimizer, "options": options, "mean_of_last": mean,
                                "to_dense": mean / dense, "curve": [statistics.fmean(step) for step in zip(*curves)]})
    return {"benchmark": "convergence", "machine": machine(), "settings": settings.values(), "steps": steps,
            "seeds": seeds, "logical_workers": LOGICAL_WORKERS, "entries": entries}


def show(result):
    rows = []
    ratios = {entry["name"]: entry["to_dense"] for entry in result["entries"]}
    for entry in result["entries"]:
        least, most = AIMS.get(entry["name"], (None, None))
        aim = f"≤ {most}" if most else f"≥ {least}" if least else ""
        rows.append([entry["name"], number(entry["mean_of_last"], 4), number(entry["to_dense"], 4), aim])
    print(f"\nMean of the last {LAST} of {result['steps']} losses, {len(result['seeds'])} seeds, "
          f"{result['logical_workers']} logical workers\n")
    print(table(["", "loss", "÷ dense", "aim"], rows))
    share = (ratios["top-K 1 %"] - 1) / (ratios["top-K 1 %, no feedback"] - 1)
    print(f"\ntop-K 1 %: with feedback {number(share)} of the distance to dense without "
          f"(aim: at most {number(SHARE_AT_ONE_PERCENT)})")
