"""Does adding up sparse gradients scale with the number of logical workers?"""

import json
import os

from common.programs import output_of
from common.report import all_missing, marked, number, per_round, summary, table

PROGRAM = "bench_merge"
ELEMENTS = 16 << 20
SHARE = 0.01
LOGICAL_WORKERS = (2, 4, 8, 16, 32)
WAYS = ("region split", "all-gather")
ENTRY = 8  # bytes: an index and a value
LINK_GBPS = 10
CELL_SECONDS = 15


def received(way, hosts, entries, summed):
    """Bytes that reach one of `hosts` hosts, each of which sends `entries`; the sum has `summed`. By regions a
    host gets its part of the others' lists, then the others' parts of the sum."""
    if way == "all-gather":
        return ENTRY * entries * (hosts - 1)
    return ENTRY * (hosts - 1) / hosts * (entries + summed)


def cells(_, settings):
    return {f"{hosts} lists": hosts for hosts in ((2, 4) if settings.quick else LOGICAL_WORKERS)}


def measure(tools, settings, left, watch):
    program = tools.program(PROGRAM)
    entries = int(SHARE * ELEMENTS)
    for name, hosts in left.items():
        if not os.path.exists(program):
            yield name, {"missing": {PROGRAM: "build with -DTUTTI_BENCH=ON"}}
            continue
        answer = json.loads(
            output_of([program, str(ELEMENTS), str(entries), str(hosts), str(settings.rounds)], watch))
        ways = {way: summary([[value] for value in answer[way]]) for way in WAYS}
        for way, cell in ways.items():
            cell["received_bytes"] = received(way, hosts, entries, answer["entries"])
            cell["link_ms"] = cell["median_us"] / 1e3 + cell["received_bytes"] * 8 / LINK_GBPS / 1e6
        yield name, {"hosts": hosts, "summed": answer["entries"], "ways": ways, "missing": {},
                     "times": per_round(ways["all-gather"], ways["region split"])}


def result(values):
    return {"elements": ELEMENTS, "share": SHARE, "link_gbps": LINK_GBPS,
            "entries": [v for v in values if not v["missing"]], "missing": all_missing(values)}


def show(result):
    print(f"\nThe sum of lists of {result['share']:.0%} of {result['elements'] >> 20} M elements, one from each host: "
          "by regions, and of everything")
    print(f"by everyone. One thread; MB that reach each host; ms with a link of {result['link_gbps']} Gb/s, modelled, "
          "nothing overlaps")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    rows = []
    for entry in result["entries"]:
        split, everything = (entry["ways"][way] for way in WAYS)
        rows.append([marked(f"{entry['hosts']} hosts", entry), number(split["median_us"] / 1e3),
                     number(everything["median_us"] / 1e3), number(entry["times"]),
                     number(split["received_bytes"] / 1e6), number(everything["received_bytes"] / 1e6),
                     number(split["link_ms"]), number(everything["link_ms"])])
    print(table(["", "split ms", "all ms", "all ÷ split", "split MB", "all MB", "split, link", "all, link"], rows))
