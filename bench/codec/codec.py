"""What does each codec send, what does it cost, and over which link does it pay?"""

from common.contestants import Contestant, Failed
from common.report import machine, number, per_round, summary, table
from step.rivals import launch
from step.step import KEEP_MEMORY, MODELS, WARM_UP

# As codec_of() reads them; the first is what the others are held against.
METHODS = ("none", "half", "bfloat16", "threshold:0.01", "topk:0.1", "topk:0.01", "topk:0.001")
WORKERS = 2
HOSTS = 2  # and logical workers
LINKS_GBPS = (100, 10, 1)
# Times fewer bytes than dense, both ways, indices counted.
AIMS = {"half": 2, "topk:0.01": 20}


def link_seconds(bytes_per_step, gbps):
    """All hosts send at once: each its messages to whoever owns the elements, and sums back, (H−1)/H of
    both."""
    return bytes_per_step / HOSTS * (HOSTS - 1) / HOSTS / (gbps * 1e9 / 8)


def measure(tools, model, settings):
    rounds = {method: [] for method in METHODS}
    bytes_per_step, missing = {}, {}
    for _ in range(settings.restarts):
        running = {}
        try:
            for method in METHODS:
                commands = launch(tools, WORKERS, "bench_step_trainer", "{socket}", model, str(HOSTS),
                                  method, str(HOSTS))
                try:
                    running[method] = Contestant(method, commands, WORKERS, KEEP_MEMORY)
                    running[method].ask(f"steps {WARM_UP}")
                except (Failed, OSError) as error:
                    missing[method] = str(error)
            order = [m for m in running if m not in missing]
            for turn in range(max(1, settings.rounds // settings.restarts)):
                shift = turn % max(1, len(order))
                for method in order[shift:] + order[:shift]:
                    rounds[method].append(running[method].ask(f"steps {settings.steps + 1}")[0][1:])
            for method in order:
                sent, dense, steps = running[method].ask("traffic")[0]
                bytes_per_step[method] = (sent / steps, dense / steps)
        finally:
            for contestant in running.values():
                contestant.close()
    return {m: r for m, r in rounds.items() if r}, bytes_per_step, missing


def run(tools, settings):
    entries = []
    for model in MODELS:
        if model not in settings.models:
            continue
        settings.progress(f"codec, {model}")
        rounds, sizes, missing = measure(tools, model, settings)
        cells = {method: summary(r) for method, r in rounds.items()}
        for method, cell in cells.items():
            sent, dense = sizes[method]
            cell.update(bytes_per_step=sent, dense_bytes=dense, times_fewer=dense / sent,
                        to_none=per_round(cell, cells["none"]),
                        link_ms={g: cell["median_us"] / 1e3 + 1e3 * link_seconds(sent, g) for g in LINKS_GBPS})
        entries.append({"model": model, "methods": cells, "missing": missing})
    return {"benchmark": "codec", "machine": machine(), "settings": settings.values(), "workers": WORKERS,
            "hosts": HOSTS, "entries": entries}


def show(result):
    print(f"\nCodecs: Trainer, {result['workers']} workers, {result['hosts']} logical workers; bytes of all "
          f"logical workers, both ways; times on this host, and with a link between {result['hosts']} hosts "
          "added (nothing overlaps)")
    for entry in result["entries"]:
        rows = []
        for method, cell in entry["methods"].items():
            aim = f" (aim {AIMS[method]})" if method in AIMS else ""
            rows.append([method, number(cell["bytes_per_step"] / 1e6), number(cell["times_fewer"]) + aim,
                         number(cell["median_us"] / 1e3), number(cell["to_none"])] +
                        [number(cell["link_ms"][g]) for g in LINKS_GBPS])
        print(f"\n{MODELS[entry['model']]}\n")
        print(table(["", "MB/step", "× fewer", "ms", "÷ none"] + [f"ms at {g} Gb/s" for g in LINKS_GBPS], rows))
        for method, why in entry["missing"].items():
            print(f"{method} is missing: {why}")
