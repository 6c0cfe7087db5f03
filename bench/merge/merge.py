"""Does adding up sparse gradients scale with the number of logical workers?"""

import json
import os
import subprocess

from common.report import machine, number, per_round, summary, table

PROGRAM = "bench_merge"
ELEMENTS = 16 << 20
SHARE = 0.01
LOGICAL_WORKERS = (2, 4, 8, 16, 32)
WAYS = ("region split", "all-gather")
ENTRY = 8  # bytes: an index and a value
LINK_GBPS = 10


def received(way, hosts, entries, summed):
    """Bytes that reach one of `hosts` hosts, each of which sends `entries`; the sum has `summed`. By regions a
    host gets its part of the others' lists, then the others' parts of the sum."""
    if way == "all-gather":
        return ENTRY * entries * (hosts - 1)
    return ENTRY * (hosts - 1) / hosts * (entries + summed)


def run(tools, settings):
    result = {"benchmark": "merge", "machine": machine(), "settings": settings.values(), "elements": ELEMENTS,
              "share": SHARE, "link_gbps": LINK_GBPS, "entries": []}
    program = tools.program(PROGRAM)
    if not os.path.exists(program):
        return {**result, "missing": "build with -DTUTTI_BENCH=ON"}
    entries = int(SHARE * ELEMENTS)
    for hosts in (2, 4) if settings.quick else LOGICAL_WORKERS:
        settings.progress(f"merge, {hosts} lists")
        done = subprocess.run([program, str(ELEMENTS), str(entries), str(hosts), str(settings.rounds)],
                              capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        cells = {way: summary([[value] for value in answer[way]]) for way in WAYS}
        for way, cell in cells.items():
            cell["received_bytes"] = received(way, hosts, entries, answer["entries"])
            cell["link_ms"] = cell["median_us"] / 1e3 + cell["received_bytes"] * 8 / LINK_GBPS / 1e6
        result["entries"].append({"hosts": hosts, "summed": answer["entries"], "ways": cells,
                                  "times": per_round(cells["all-gather"], cells["region split"])})
    return result


def show(result):
    print(f"\nThe sum of lists of {result['share']:.0%} of {result['elements'] >> 20} M elements, one from each host: "
          "by regions, and of everything")
    print(f"by everyone. One thread; MB that reach each host; ms with a link of {result['link_gbps']} Gb/s, modelled, "
          "nothing overlaps")
    if "missing" in result:
        print(f"  missing: {result['missing']}")
        return
    rows = []
    for entry in result["entries"]:
        split, everything = (entry["ways"][way] for way in WAYS)
        rows.append([f"{entry['hosts']} hosts", number(split["median_us"] / 1e3),
                     number(everything["median_us"] / 1e3), number(entry["times"]),
                     number(split["received_bytes"] / 1e6), number(everything["received_bytes"] / 1e6),
                     number(split["link_ms"]), number(everything["link_ms"])])
    print(table(["", "split ms", "all ms", "all ÷ split", "split MB", "all MB", "split, link", "all, link"], rows))
