"""Is selecting by magnitude a matter of reading the array, and how far are libtorch and std behind?"""

import json
import os

from common.programs import output_of
from common.report import all_missing, marked, number, per_round, summary, table

PROGRAM = "bench_selection"
# Elements in millions (2^20): rounds, and rounds of the rivals that take seconds.
SIZES = {1: (41, 7), 16: (15, 3), 64: (9, 2)}
SHARES = {"0.010": "1 %", "0.001": "0.1 %"}
RIVALS = ("at::topk", "std::nth_element")
# Bytes per element that are read and written; those of int8 have a scale for each 256.
CONVERSION_BYTES = {"float16": 6, "bfloat16": 6, "int8": 5 + 4 / 256}
CONVERSIONS = {f"{way} {kind}": size for kind, size in CONVERSION_BYTES.items() for way in ("to", "from")}
MEMCPY_BYTES = 6
AT_MOST_SWEEPS = 6  # select_largest, in times of reading the array once
TOPK_AT_LEAST = {"0.010": 8, "0.001": 5}  # times faster than at::topk
AT_LEAST_SWEEPS = 1.5  # select_at_least
CELL_SECONDS = 60


def cells(_, settings):
    sizes = {1: (3, 1)} if settings.quick else SIZES
    return {f"{millions} M elements": (millions, *rounds) for millions, rounds in sizes.items()}


def measure(tools, _, left, watch):
    program = tools.program(PROGRAM)
    for name, (millions, rounds, slow) in left.items():
        if not os.path.exists(program):
            yield name, {"missing": {PROGRAM: "build with -DTUTTI_BENCH=ON and libtorch"}}
            continue
        elements = millions << 20
        output = output_of([program, str(elements), str(rounds), str(slow)], watch, {"OMP_NUM_THREADS": "1"})
        times = {what: summary([[value] for value in values]) for what, values in json.loads(output).items()}
        yield name, {"millions": millions, "times": times, **ratios(times, elements), "missing": {}}


def result(values):
    return {"entries": [v for v in values if not v["missing"]], "missing": all_missing(values)}


def ratios(times, elements):
    """Each the median of what was measured in the same round."""
    def in_sweeps(name):
        # Three sweeps in a row are the unit: one alone may find the end of the array still in a cache.
        return 3 * per_round(times[name], times["three sweeps"])

    largest = {}
    for share in SHARES:
        ours = f"select_largest {share}"
        largest[share] = {"sweeps": in_sweeps(ours)}
        for rival in RIVALS:
            theirs = f"{rival} {share}"
            largest[share][rival] = per_round(times[theirs], times[ours])
            largest[share][rival + " sweeps"] = in_sweeps(theirs)
        largest[share]["met"] = (largest[share]["sweeps"] <= AT_MOST_SWEEPS
                                 and largest[share]["at::topk"] >= TOPK_AT_LEAST[share])
    sweeps = per_round(times["select_at_least"], times["sweep"])
    conversions = {name: {"gbps": size * elements / times[name]["median_us"] / 1e3,
                          "of_memcpy": per_round(times["memcpy"], times[name]) * size / MEMCPY_BYTES}
                   for name, size in CONVERSIONS.items()}
    return {"largest": largest, "at_least": {"sweeps": sweeps, "met": sweeps <= AT_LEAST_SWEEPS},
            "conversions": conversions, "memcpy_gbps": MEMCPY_BYTES * elements / times["memcpy"]["median_us"] / 1e3}


def verdict(met):
    return "met" if met else "NOT met"


def show(result):
    print("\nThe k largest magnitudes of float32 (normal distribution), one thread. A sweep: the array is read")
    print("once. Ratios within rounds")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    rows = []
    for entry in result["entries"]:
        for share, text in SHARES.items():
            cells, times = entry["largest"][share], entry["times"]
            rows.append([marked(f"{entry['millions']} M, {text}", entry), milliseconds(times["three sweeps"]),
                         milliseconds(times[f"select_largest {share}"]), number(cells["sweeps"]),
                         f"≤ {AT_MOST_SWEEPS}", number(cells["at::topk"]), f"≥ {TOPK_AT_LEAST[share]}",
                         number(cells["std::nth_element"]), verdict(cells["met"])])
    print(table(["", "three sweeps ms", "this ms", "in sweeps", "", "at::topk ÷ this", "",
                 "nth_element ÷ this", ""], rows))
    print("\nAll magnitudes from a threshold on, 1 % of them")
    print(table(["", "this ms", "in sweeps", "", ""],
                [[marked(f"{entry['millions']} M", entry), milliseconds(entry["times"]["select_at_least"]),
                  number(entry["at_least"]["sweeps"]), f"≤ {AT_LEAST_SWEEPS}",
                  verdict(entry["at_least"]["met"])] for entry in result["entries"]]))
    print("\nFloat32 to 16 or 8 bits and back: GB/s, 6 or 5 bytes per element read and written (× memcpy of as many)")
    rows = [[marked(f"{entry['millions']} M", entry), number(entry["memcpy_gbps"]),
             *(f"{number(cell['gbps'])} ({number(cell['of_memcpy'])})"
               for cell in entry["conversions"].values())] for entry in result["entries"]]
    print(table(["", "memcpy", *CONVERSIONS], rows))


def milliseconds(times):
    return number(times["median_us"] / 1e3)
