"""Every program of a build that bench/run.py starts, by the name it is called by: answers what the real
one would, at once, in numbers of no meaning. Hundreds are started: it imports little."""

import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))
from common.control import Control

NAME = os.path.basename(sys.argv[0])


def serve(path, rank):
    signal.alarm(200)  # Ends it also where the driver does not.
    control = Control(path, rank)
    if os.environ.get("FAKE_PIDS"):
        with open(os.environ["FAKE_PIDS"], "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    for what, *words in control.commands():
        if os.environ.get("FAKE_SLOW") == what:
            time.sleep(0.5)
        while os.environ.get("FAKE_HANG") == what:
            pass
        if what == "held" or (NAME == "bench_pipeline" and what == "peak"):
            count = 1
        elif what == "bounds":
            count = 11
        elif what == "peak":
            count = 2
        elif what == "steps":
            count = int(words[0])
        else:
            count = int(words[1]) if len(words) == 3 else 3
        control.send([1000 * (1 + rank) + n for n in range(count)])


def ranks(count, command):
    """A launcher: as many processes as there are ranks."""
    children = [os.spawnve(os.P_NOWAIT, command[0], command, {**os.environ, "FAKE_RANK": str(rank)})
                for rank in range(count)]
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


if NAME == "tutti":
    ranks(int(sys.argv[3]), sys.argv[sys.argv.index("--") + 1:])
elif NAME == "mpirun":
    program = next(i for i, word in enumerate(sys.argv) if "bench_" in os.path.basename(word))
    ranks(int(option("-n")), sys.argv[program:])
elif NAME == "bench_all_reduce_probe" and "FAKE_RANK" not in os.environ:
    ranks(int(sys.argv[2]), sys.argv)
elif NAME == "update_bench":
    figures = ("of_bound", "of_two_sweeps", "bound_GB/s", "sweep_GB/s", "ms_median", "ms_min", "ms_p99")
    print(json.dumps({"benchmarks": [dict.fromkeys(figures, 1.0)]}))
elif NAME == "bench_hosts_probe":
    print(119500000)
elif NAME == "bench_lanes":
    print(json.dumps({"1": [8, 9], "2": [7, 8], "4": [3, 4]}))
elif NAME == "bench_recompute":
    ways = ("plain", "again, 32 chunks") if sys.argv[1] == "lstm" else ("plain", "budget 0 %")
    print(json.dumps({way: {"peak": 9 - k, "ns": [7 + k, 8]} for k, way in enumerate(ways)}))
elif NAME == "bench_speeds":
    if os.environ["FAKE_RANK"] == "0":
        print(json.dumps({"equal": [6, 9], "by speed": [4, 6]}))
elif NAME == "bench_merge":
    print(json.dumps({"entries": 5, "region split": [3, 4], "all-gather": [5, 6]}))
elif NAME == "bench_selection":
    times = ["sweep", "three sweeps", "select_at_least", "memcpy"]
    times += [f"{what} {share}" for what in ("select_largest", "at::topk", "std::nth_element")
              for share in ("0.010", "0.001")]
    times += [f"{way} {kind}" for way in ("to", "from") for kind in ("float16", "bfloat16", "int8")]
    print(json.dumps({name: [7, 8] for name in times}))
elif NAME == "char_lm":
    import hashlib
    from convergence.text import SHA256
    with open(option("--text"), "rb") as text:
        if hashlib.sha256(text.read()).hexdigest() != SHA256:
            sys.exit("another text")
    with open(option("--log"), "w", encoding="utf-8") as log:
        for step in range(int(option("--steps"))):
            log.write(json.dumps({"kind": "metrics", "loss": 3 - step / 1000 + len(sys.argv) / 100}) + "\n")
elif NAME in ("bench_all_reduce_gloo", "bench_step_gloo"):
    serve(sys.argv[1], int(sys.argv[2 if NAME == "bench_all_reduce_gloo" else 4]))
elif NAME == "bench_step_process":
    serve(sys.argv[1], int(sys.argv[5]) if len(sys.argv) > 5 else 0)
else:
    serve(sys.argv[1], int(os.environ.get("FAKE_RANK", os.environ.get("RANK", 0))))
