"""What does a training step cost on several hosts, and what does it send? Tutti beside what people use today, taking
turns in network namespaces of this machine."""

import itertools
import os
import re
import statistics

from common.contestants import Contestant, Failed
from common.report import marked, number, per_round, summary, table
from common.turns import KEEP_MEMORY, WARM_UP, order_of
from hosts import aims
from hosts.network import Network, NoHosts
from hosts.rivals import DDP, DDP_SPARSE, NO_SYNC, NO_SYNC_PYTHON, TRAINER, TUTTI, MPIS, Place, link_column, rivals

MODELS = {
    "mlp": "MLP 8×1024², batch 16 (34 MB)",
    "lstm": "LSTM 2×512, characters, 8×64 (15 MB)",
    "bag": "EmbeddingBag 200 000×64, batch 64×16 (51 MB): row-sparse, others dense",
}
BYTES = {"mlp": 8 * (1024 * 1024 + 1024) * 4,
         "lstm": (100 * 256 + 4 * 512 * (256 + 512 + 2) + 4 * 512 * (512 + 512 + 2) + 512 * 100 + 100) * 4,
         "bag": (200000 * 64 + 64 * 10 + 10) * 4}
LAYOUTS = ("2x1", "2x2", "3x1", "4x1", "4x2", "2x1@10gbit")  # hosts × workers of each, at 1gbit unless it is said
QUICK_LAYOUTS = ("2x1",)
RIVALS = (TUTTI, DDP, *MPIS)  # of a dense model or table: bounded by the wire as the Trainer is of the former
CELL_SECONDS = 120
BURST = 2.0  # seconds
QUICK_BURST = 0.3
PROBE = 0.5  # seconds, before each round


def layout_of(text):
    """Hosts, workers of each, and the rate of their links; None of another text."""
    found = re.fullmatch(r"([2-9])x([1-9])(?:@(10?gbit))?", text)
    return found and (int(found.group(1)), int(found.group(2)), found.group(3) or "1gbit")


def methods_of(settings, hosts):
    """{column: options} of what is asked for beside dense steps; each host is a logical worker then."""
    logical = ["--logical-workers", str(hosts)]
    return {f"{TRAINER}, {value}": [option, value, *logical]
            for option, values in (("--codec", settings.codecs), ("--averaging", settings.averaging))
            for value in values}


def cells(_, settings):
    layouts = settings.layouts or (QUICK_LAYOUTS if settings.quick else LAYOUTS)
    models = [model for model in MODELS if model in settings.models]
    return {f"{layout}, {model}": (layout, model) for layout, model in itertools.product(layouts, models)}


def measure(tools, settings, left, watch):
    for name, (layout, model) in left.items():
        hosts, each, rate = layout_of(layout)
        value = {"layout": layout, "hosts": hosts, "each": each, "rate": rate, "model": model, "columns": {},
                 "missing": {}, "aims": [], "probe_MB/s": None}
        probe = tools.program("bench_hosts_probe")
        try:
            if not os.path.exists(probe):
                raise NoHosts("there is no bench_hosts_probe: build with -DTUTTI_BENCH=ON")
            network = Network(hosts, rate, probe)
        except NoHosts as reason:
            value["missing"]["all of it"] = str(reason)
            with watch.round():
                pass
            yield name, value
            continue
        try:
            methods = methods_of(settings, hosts)
            commands, value["missing"] = rivals(Place(tools, network, each), model, methods,
                                                settings.links)
            turns = Turns(network, hosts * each, settings, watch)
            turns.take(commands, value["missing"], methods)
        finally:
            network.close()
        value["oversubscribed"] = hosts * each > tools.cores
        value["probe_MB/s"] = statistics.median(turns.probes) / 1e6
        value["columns"] = derive(turns, hosts, model, {c: options[1] for c, options in methods.items()},
                                      settings.links)
        value["aims"] = aims.judge(hosts, each, rate, model, value["columns"])
        yield name, value


class Turns:
    """What contestants of one place have measured: probes of the rounds in bytes/s, and by column rounds of
    nanoseconds and the bytes per step of each host."""

    def __init__(self, network, ranks, settings, watch):
        self._network = network
        self._ranks = ranks
        self._settings = settings
        self._watch = watch
        self.probes, self.rounds, self.sent = [], {}, {}

    def take(self, commands, missing, methods):
        environment = {**({} if self._settings.system_malloc else KEEP_MEMORY), **self._network.environment()}
        burst = QUICK_BURST if self._settings.quick else BURST
        running, steps = {}, {}
        try:
            for column, command in commands.items():
                try:
                    running[column] = Contestant(column, command, self._ranks, environment, pinned=False)
                    running[column].ask(f"steps {max(WARM_UP, period_of(methods.get(column)))}")
                    guess = max(running[column].ask("steps 2")[0])
                    steps[column] = max(2, min(self._settings.steps, int(burst * 1e9 / guess)))
                    period = period_of(methods.get(column))
                    steps[column] = -(-steps[column] // period) * period
                except (Failed, OSError) as error:
                    missing[column] = "\n".join(dict.fromkeys(str(error).splitlines()))  # all ranks say the same
            order = [column for column in running if column not in missing]
            for turn in range(self._settings.rounds):
                with self._watch.round():
                    self.probes.append(self._network.probe(PROBE))
                    for column in order_of(order, turn):
                        self._burst(column, running[column], steps[column], period_of(methods.get(column)) > 1)
        finally:
            for contestant in running.values():
                contestant.close()

    def _burst(self, column, contestant, steps, is_periodic):
        """The first step, which finds cold caches, is none of the times, but for averaging: all of a period count."""
        before = self._network.sent()
        count = steps if is_periodic else steps + 1
        times = contestant.ask(f"steps {count}")[0]
        after = self._network.sent()
        samples = [statistics.fmean(times)] if is_periodic else times[1:]
        self.rounds.setdefault(column, []).append(samples)
        self.sent.setdefault(column, []).append([(a - b) / count for a, b in zip(after, before)])


def period_of(options):
    """After how many steps an averaging policy starts again, of which its first average every step; of all else 1."""
    found = options and options[0] == "--averaging" and re.search(r":(\d+)", options[1])
    return int(found.group(1)) if found else 1


def derive(turns, hosts, model, methods, links=()):
    columns = {column: summary(rounds) for column, rounds in turns.rounds.items()}
    alone = columns.get(NO_SYNC) or columns.get(NO_SYNC_PYTHON)
    probe = statistics.median(turns.probes)
    trainers = [TRAINER, *map(link_column, links)]
    for column, cell in columns.items():
        cell["sent"] = [statistics.median(sent) for sent in zip(*turns.sent[column])]
        cell["busiest"] = max(cell["sent"])
        cell["alone_us"] = alone and alone["median_us"]
        cell["ratio_to_no_sync"] = per_round(cell, alone) if alone else None
        # Both the gradients' slices and their sums leave each host once.
        is_bounded = column in RIVALS or column in trainers and model != "bag"
        cell["wire_us"] = 2 * (hosts - 1) / hosts * BYTES[model] / probe * 1e6 if is_bounded else None
        bound = max(cell["wire_us"] or 0, cell["alone_us"] or 0)
        cell["ratio_to_bound"] = cell["median_us"] / bound if is_bounded and bound else None
        cell["share_of_probe"] = cell["busiest"] / cell["median_us"] * 1e6 / probe
        if column in methods:
            cell["method"] = methods[column]
    for column, cell in columns.items():
        others = {o: c for o, c in columns.items() if o != column}
        cell["times_faster_than"] = {o: per_round(c, cell) for o, c in others.items()}
        cell["times_fewer"] = {o: c["busiest"] / cell["busiest"] for o, c in others.items() if cell["busiest"]}
    return columns


def result(values):
    return {"entries": values}


def show(result):
    print("\nTraining step on several hosts (network namespaces), one thread per worker, Adam; ms, medians of rounds; MB that "
          "leave the\nbusiest host per step, and all hosts, headers included; probe: one TCP connection, both ways at once; "
          "bound: the larger of a\nstep without synchronisation and 2(H−1)/H of the gradients at the probe's speed")
    for entry in result["entries"]:
        note = " (more workers than cores)" if entry.get("oversubscribed") else ""
        title = f"{entry['hosts']} hosts × {entry['each']} at {entry['rate']}{note}, {MODELS[entry['model']]}"
        print("\n" + marked(title, entry) + (
            f"; probe {number(entry['probe_MB/s'])} MB/s each way" if entry["probe_MB/s"] else ""))
        for column, why in entry["missing"].items():
            print(f"  {column} is missing: {why}")
        rows = [[column, *(number(cell[k] / 1e3) for k in ("median_us", "min_us", "p99_us")),
                 number(cell["times_faster_than"].get(TRAINER) and 1 / cell["times_faster_than"][TRAINER]),
                 number(cell["ratio_to_no_sync"]), number(cell["ratio_to_bound"]), number(cell["busiest"] / 1e6),
                 number(sum(cell["sent"]) / 1e6), number(cell["share_of_probe"])]
                for column, cell in entry["columns"].items()]
        if rows:
            print(table(["", "median", "min", "p99", "÷ Trainer", "÷ no sync", "÷ bound", "MB", "MB of all", "÷ probe"],
                        rows))
        if entry["aims"]:
            print("\n" + table(["", "", "aim", ""], aims.rows(entry["aims"])))
    show_bytes(result["entries"])


def show_bytes(entries):
    """Workers of a host send together: two must not send more than one."""
    sent = {(e["hosts"], e["rate"], e["model"], e["each"]): e["columns"][TRAINER]["busiest"]
            for e in entries if TRAINER in e["columns"]}
    rows = [[f"{hosts} hosts at {rate}, {model}", number(value / sent[hosts, rate, model, 1]),
             "met" if value <= 1.01 * sent[hosts, rate, model, 1] else "NOT met"]
            for (hosts, rate, model, each), value in sent.items() if each == 2 and (hosts, rate, model, 1) in sent]
    if rows:
        print("\nThe Trainer's bytes of a host with two workers ÷ with one (aim: no more)\n"
              + table(["", "", ""], rows))
