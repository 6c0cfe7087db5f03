#!/usr/bin/env python3
"""Runs the benchmarks of a build, prints tables, writes JSON files and pictures.

    python3 bench/run.py [--build DIR] [--quick] [--only all_reduce|step|memory|update|selection|codec|convergence|embedding|fusion|merge] [--help]

Needs nothing but Python. Pictures need matplotlib, PyTorch's DistributedDataParallel needs a Python
with torch 2.x: both are looked for in this interpreter, in --torch-python and beside the libtorch of
the build. What cannot be measured is named, never skipped silently.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from all_reduce import all_reduce
from codec import codec
from common.contestants import separate_cores
from common.report import busy_share
from convergence import convergence
from embedding import embedding
from fusion import fusion
from kernels import update
from memory import memory
from merge import merge
from selection import selection
from step import step

QUESTIONS = {"all_reduce": all_reduce, "step": step, "memory": memory, "update": update,
             "selection": selection, "codec": codec, "convergence": convergence, "embedding": embedding,
             "fusion": fusion, "merge": merge}
MODELS = list(dict.fromkeys([*step.MODELS, *memory.MODELS]))


class Tools:
    """Where programs and interpreters are."""

    def __init__(self, build, torch_python):
        self.build = build
        self.cores = len(separate_cores())
        candidates = [torch_python, sys.executable, beside_libtorch(build)]
        self._pythons = [p for p in candidates if p and os.path.exists(p)]
        self.torch_python, self.torch_version = self.python_with("torch")

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def python_with(self, module):
        """The first Python that has it, and the version that it has."""
        for python in self._pythons:
            check = [python, "-c", f"import {module}; print({module}.__version__)"]
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return python, done.stdout.strip()
        return None, None


def beside_libtorch(build):
    """The interpreter of the environment that the build's libtorch belongs to, if it does to one."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            found = re.search(r"^Torch_DIR:PATH=(.*?)/lib/python[^/]*/site-packages/", file.read(), re.M)
    except OSError:
        return None
    return found and os.path.join(found.group(1), "bin", "python3")


def libtorch_version(build):
    """Of what the build is linked with; None where it has no libtorch."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            folder = re.search(r"^Torch_DIR:PATH=(.*)", file.read(), re.M).group(1)
        with open(os.path.join(folder, "TorchConfigVersion.cmake"), encoding="utf-8") as file:
            return re.search(r'PACKAGE_VERSION "(.*?)"', file.read()).group(1)
    except (OSError, AttributeError):
        return None


class Settings:
    def __init__(self, arguments):
        quick = arguments.quick
        self.quick = quick
        self.workers = arguments.workers
        self.largest = (arguments.largest_mib or (4 if quick else 256)) * 1024 * 1024
        self.rounds = arguments.rounds or (2 if quick else 9)
        self.burst = 0.01 if quick else 0.06
        self.most = 2000 if quick else 20000
        self.restarts = 1 if quick else 3
        self.steps = 4 if quick else 15
        self.touch = arguments.touch
        self.models = arguments.models
        self.system_malloc = arguments.system_malloc

    def values(self):
        return dict(vars(self))

    @staticmethod
    def progress(text):
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def draw(tools, source, picture):
    python, _ = tools.python_with("matplotlib")
    plot = os.path.join(HERE, "plot.py")
    if not python:
        print(f"no picture: matplotlib is missing (pip install matplotlib, then {plot} {source} {picture})")
        return
    subprocess.run([python, plot, source, picture], check=True)
    print(f"picture: {picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, os.pardir, "build"),
                        help="build folder, configured with -DTUTTI_BENCH=ON; default: build")
    parser.add_argument("--only", choices=QUESTIONS, action="append", help="default: all questions")
    parser.add_argument("--quick", action="store_true", help="a minute or two: does it work, not how fast")
    parser.add_argument("--results", help="folder for JSON files; default BUILD/bench/results")
    parser.add_argument("--pictures", help="folder for pictures; default: that of --results")
    parser.add_argument("--torch-python", help="a Python that has torch 2.x")
    parser.add_argument("--rounds", type=int, help="turns that every contestant takes")
    parser.add_argument("--workers", type=int, nargs="+", choices=(2, 4), default=[2, 4],
                        help="worker counts of all_reduce and step")
    parser.add_argument("--largest-mib", type=int,
                        help="largest message of all_reduce; default 256, with --quick 4")
    parser.add_argument("--touch", action="store_true",
                        help="all_reduce: every rank rewrites its data before each call")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS,
                        help="models of step and memory")
    parser.add_argument("--system-malloc", action="store_true",
                        help="step: leave malloc's settings alone (see docs/benchmarks.md)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))

    build = os.path.abspath(arguments.build)
    results = os.path.abspath(arguments.results or os.path.join(build, "bench", "results"))
    pictures = os.path.abspath(arguments.pictures or results)
    for folder in (results, pictures):
        os.makedirs(folder, exist_ok=True)
    tools = Tools(build, arguments.torch_python)
    settings = Settings(arguments)
    for name in arguments.only or QUESTIONS:
        busy = busy_share()
        result = QUESTIONS[name].run(tools, settings)
        result["machine"].update(busy_before=busy, libtorch=libtorch_version(build),
                                 torch_python=tools.torch_version)
        numbers = os.path.join(results, name + ".json")
        with open(numbers, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
        QUESTIONS[name].show(result)
        if busy > 0.1:
            print(f"\nNot to be quoted: others took {busy:.0%} of the processors before the start.")
        print(f"\nnumbers: {numbers}")
        draw(tools, numbers, os.path.join(pictures, name + ".png"))


if __name__ == "__main__":
    main()
