"""Does the Trainer's fused sweep, fold and Adam in one, run at the speed of memory?"""

import json
import os
import subprocess

from common.report import machine, number, table

PROGRAM = "update_bench"
FIGURES = ("of_bound", "of_two_sweeps", "bound_GB/s", "sweep_GB/s", "ms_median", "ms_min", "ms_p99")
AT_LEAST = 0.8  # of the speed of a probe that moves the same bytes in the same streams


def run(tools, settings):
    result = {"benchmark": "update", "machine": machine(), "settings": settings.values(), "entries": []}
    program = tools.program(PROGRAM)
    if not os.path.exists(program):
        return {**result, "missing": "build with -DTUTTI_BENCH=ON"}
    settings.progress("update")
    few = ["--benchmark_filter=/2/"] if settings.quick else []
    done = subprocess.run([program, "--benchmark_format=json", *few], capture_output=True, text=True,
                          check=True)
    for entry in json.loads(done.stdout)["benchmarks"]:
        row = {"nodes": int(entry["name"].split("/")[1]), **{key: entry[key] for key in FIGURES}}
        row["met"] = row["of_bound"] >= AT_LEAST
        result["entries"].append(row)
    return result


def show(result):
    print("\nFold and Adam in one sweep, float32, 64 MiB per stream, one thread. Bound: a probe with the")
    print("same streams, (nodes + 3 reads + 3 writes) · 4 bytes per element; ratios within neighbours")
    if "missing" in result:
        print(f"  missing: {result['missing']}")
        return
    rows = [[f"{row['nodes']} nodes", *(number(row[key]) for key in FIGURES[2:]),
             number(row["of_two_sweeps"]), number(row["of_bound"]), f"≥ {AT_LEAST}",
             "met" if row["met"] else "NOT met"] for row in result["entries"]]
    print(table(["", "bound GB/s", "sweep GB/s", "ms median", "min", "p99", "two sweeps ÷ this", "of bound",
                 "", ""], rows))
