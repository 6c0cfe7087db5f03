"""Does the Trainer's fused sweep, fold and Adam in one, run at the speed of memory?"""

import json
import os

from common.programs import output_of
from common.report import all_missing, marked, number, table

PROGRAM = "update_bench"
FIGURES = ("of_bound", "of_two_sweeps", "bound_GB/s", "sweep_GB/s", "ms_median", "ms_min", "ms_p99")
NODES = (2, 4, 8)
CELL_SECONDS = 30
AT_LEAST = 0.8  # of the speed of a probe that moves the same bytes in the same streams


def cells(_, settings):
    return {f"{nodes} nodes": nodes for nodes in (NODES[:1] if settings.quick else NODES)}


def measure(tools, _, left, watch):
    program = tools.program(PROGRAM)
    for name, nodes in left.items():
        if not os.path.exists(program):
            yield name, {"missing": {PROGRAM: "build with -DTUTTI_BENCH=ON"}}
            continue
        only = f"--benchmark_filter=/{nodes}/"
        [entry] = json.loads(output_of([program, "--benchmark_format=json", only], watch))["benchmarks"]
        figures = {key: entry[key] for key in FIGURES}
        yield name, {"nodes": nodes, **figures, "met": figures["of_bound"] >= AT_LEAST, "missing": {}}


def result(values):
    return {"entries": [v for v in values if not v["missing"]], "missing": all_missing(values)}


def show(result):
    print("\nFold and Adam in one sweep, float32, 64 MiB per stream, one thread. Bound: a probe with the")
    print("same streams, (nodes + 3 reads + 3 writes) · 4 bytes per element; ratios within neighbours")
    for program, remedy in result["missing"].items():
        print(f"  {program} is missing: {remedy}")
    rows = [[marked(f"{row['nodes']} nodes", row), *(number(row[key]) for key in FIGURES[2:]),
             number(row["of_two_sweeps"]), number(row["of_bound"]), f"≥ {AT_LEAST}",
             "met" if row["met"] else "NOT met"] for row in result["entries"]]
    print(table(["", "bound GB/s", "sweep GB/s", "ms median", "min", "p99", "two sweeps ÷ this", "of bound",
                 "", ""], rows))
