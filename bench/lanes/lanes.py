"""What do several lanes of a group gain where many calls are under way, and what do they cost where none are?"""

import json
import os

from common.programs import output_of
from common.report import all_missing, marked, number, per_round, size_name, summary, table

PROGRAM = "bench_lanes"
LANES = ("1", "2", "4")
LINK_US = 1000
KIB = 1024
# Way, place, hosts, the link's latency in µs, bytes of a call, calls of a round.
CELLS = {
    "started, in place": ("started", "arena", 1, 0, 64 * KIB, 32),
    "started, staged": ("started", "staged", 1, 0, 64 * KIB, 32),
    "started, 2 hosts": ("started", "staged", 2, 0, 64 * KIB, 32),
    "started, 2 hosts, 1 ms": ("started", "staged", 2, LINK_US, 64 * KIB, 32),
    "blocking, 64 B": ("blocking", "staged", 1, 0, 64, 2000),
    "blocking, 4 KiB": ("blocking", "staged", 1, 0, 4 * KIB, 2000),
    "blocking, 64 KiB in place": ("blocking", "arena", 1, 0, 64 * KIB, 500),
    "blocking, 64 KiB": ("blocking", "staged", 1, 0, 64 * KIB, 500),
    "blocking, 1 MiB": ("blocking", "staged", 1, 0, 1024 * KIB, 20),
}
DEFAULT = "2"
MOST_LOST = 0.05  # by the default's lanes, anywhere
AT_LEAST = 1.5  # times faster by 4 lanes, over the late link
CELL_SECONDS = 5


def cells(_, settings):
    return dict(list(CELLS.items())[:1]) if settings.quick else CELLS


def measure(tools, settings, left, watch):
    program = tools.program(PROGRAM)
    for name, cell in left.items():
        way, place, hosts, delay, size, calls = cell
        if not os.path.exists(program):
            yield name, {"missing": {PROGRAM: "build with -DTUTTI_BENCH=ON"}}
            continue
        rounds = max(3, 5 * settings.rounds if delay == 0 else settings.rounds)
        command = [program, way, place, *(str(n) for n in (hosts, delay, size, calls, rounds))]
        answer = json.loads(output_of(command, watch))
        times = {lanes: summary([[value] for value in answer[lanes]]) for lanes in LANES}
        yield name, {"name": name, "way": way, "place": place, "hosts": hosts, "link_us": delay, "bytes": size,
                     "calls": calls, "lanes": times, "missing": {},
                     "faster": {lanes: per_round(times["1"], times[lanes]) for lanes in LANES}}


def result(values):
    return {"entries": [v for v in values if not v["missing"]], "missing": all_missing(values)}


def met(entry):
    late = entry["faster"]["4"] >= AT_LEAST if entry["link_us"] > 0 else True
    return late and entry["faster"][DEFAULT] >= 1 / (1 + MOST_LOST)


def show(result):
    print("\nAll-reduces of two workers in groups of 1, 2 and 4 lanes, taking turns; µs per call, median; 1 lane ÷ "
          "this, median")
    print(f"of rounds. Aims: {DEFAULT} lanes, the default, nowhere over {MOST_LOST:.0%} slower than 1; 4 lanes over a "
          f"link of {LINK_US // 1000} ms at least {AT_LEAST} × faster")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    rows = []
    for entry in result["entries"]:
        each = [number(entry["lanes"][lanes]["median_us"] / entry["calls"]) for lanes in LANES]
        faster = [number(entry["faster"][lanes]) for lanes in LANES[1:]]
        rows.append([marked(entry["name"], entry), f"{entry['calls']} × {size_name(entry['bytes'])}", *each, *faster,
                     "met" if met(entry) else "NOT met"])
    columns = [*(f"{lanes} µs" for lanes in LANES), *(f"1 ÷ {lanes}" for lanes in LANES[1:])]
    print(table(["", "calls", *columns, ""], rows))
