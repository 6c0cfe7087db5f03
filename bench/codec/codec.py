"""What does each codec and averaging policy send, what does it cost, and over which link does it pay?"""

import statistics

from common.report import marked, number, per_round, summary, table
from common.turns import take_turns
from step.rivals import bytes_per_step, launch
from step.step import MODELS

# As codec_of() or averaging_policy_of() read them; the first is what the others are held against. Rounds of 15
# steps have three averaging rounds of five.
AVERAGING = ("local-sgd:5", "bmuf:5", "partial")
METHODS = ("none", "half", "bfloat16", "int8", "threshold:0.01", "topk:0.1", "topk:0.01", "topk:0.001", *AVERAGING)
WORKERS = 2
HOSTS = 2  # and logical workers
LINKS_GBPS = (100, 10, 1)
# Times fewer bytes than dense, both ways, indices counted.
AIMS = {"half": 2, "int8": 3.9, "topk:0.01": 20}
CELL_SECONDS = 120


def link_seconds(bytes_per_step, gbps):
    """All hosts send at once: each its messages to the owners of the elements, and sums back, (H−1)/H of
    both."""
    return bytes_per_step / HOSTS * (HOSTS - 1) / HOSTS / (gbps * 1e9 / 8)


def milliseconds(rounds):
    """Per step: steps that send and steps that do not count as often as they come."""
    return statistics.median(statistics.fmean(samples) for samples in rounds) / 1e6


def one_model(tools, model, settings, watch):
    """Rounds and (bytes sent, bytes dense) per step of each method, and what is missing."""
    commands = {method: launch(tools, WORKERS, "bench_step_trainer", "{socket}", model, str(HOSTS),
                               "--averaging" if method in AVERAGING else "--codec", method,
                               "--logical-workers", str(HOSTS)) for method in METHODS}
    missing = {}
    rounds, sizes = take_turns(commands, WORKERS, settings, watch, missing,
                               lambda _, trainer: bytes_per_step(trainer))
    return rounds, sizes, missing


def cells(_, settings):
    return {model: model for model in MODELS if model in settings.models}


def measure(tools, settings, left, watch):
    for model in left:
        rounds, sizes, missing = one_model(tools, model, settings, watch)
        methods = {method: summary(r) for method, r in rounds.items()}
        for method, cell in methods.items():
            sent, dense = sizes[method]
            ms = milliseconds(rounds[method])
            cell.update(bytes_per_step=sent, dense_bytes=dense, times_fewer=dense / sent, ms=ms,
                        to_none=per_round(cell, methods["none"]) if "none" in methods else None,
                        link_ms={str(g): ms + 1e3 * link_seconds(sent, g) for g in LINKS_GBPS})
        yield model, {"model": model, "methods": methods, "missing": missing}


def result(values):
    return {"workers": WORKERS, "hosts": HOSTS, "entries": values}


def show(result):
    print(f"\nCodecs and averaging policies: Trainer, {result['workers']} workers, {result['hosts']} logical workers; "
          "bytes of all logical workers, both ways; times on this host, and with a link between "
          f"{result['hosts']} hosts added (nothing overlaps)")
    for entry in result["entries"]:
        rows = []
        for method, cell in entry["methods"].items():
            aim = f" (aim {AIMS[method]})" if method in AIMS else ""
            rows.append([method, number(cell["bytes_per_step"] / 1e6), number(cell["times_fewer"]) + aim,
                         number(cell["ms"]), number(cell["to_none"])] +
                        [number(cell["link_ms"][str(g)]) for g in LINKS_GBPS])
        print("\n" + marked(MODELS[entry["model"]], entry) + "\n")
        print(table(["", "MB/step", "× fewer", "ms", "÷ none"] + [f"ms at {g} Gb/s" for g in LINKS_GBPS], rows))
        for method, why in entry["missing"].items():
            print(f"{method} is missing: {why}")
