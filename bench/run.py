#!/usr/bin/env python3
"""Runs the benchmarks of a build, prints tables, writes JSON files and pictures.

    python3 bench/run.py [--build DIR] [--quick] [--only QUESTION] [--against DIR] [--resume] [--help]

Each cell is written when it is measured. Ended by SIGINT or SIGTERM, the run prints the tables of
what it has; the same command with --resume measures the rest.

Needs nothing but Python. Pictures need matplotlib, PyTorch's DistributedDataParallel needs a Python
with torch 2.x: both are looked for in this interpreter, in --torch-python and beside the libtorch of
the build. What cannot be measured is named, never skipped silently.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from common import interrupt
from common.contestants import Failed, separate_cores
from common.identity import cached, differences, identity
from common.programs import output_of
from common.progress import Progress
from common.record import Record, view
from common.watch import Watch
from hosts.hosts import layout_of
from questions import MODELS, QUESTIONS, is_timed

PROJECT = os.path.dirname(HERE)
AGAINST = ["all_reduce", "step"]  # questions that another build can be measured in
# Options that decide no figure.
ELSEWHERE = ("build", "results", "pictures", "torch_python", "resume", "check_options")


class Build:
    """Where programs are."""

    def __init__(self, folder):
        self.build = folder

    def program(self, name):
        return os.path.join(self.build, "bin", name)


class Tools(Build):
    """Interpreters and launchers besides, and another build to measure against, or None."""

    def __init__(self, build, torch_python, against=None):
        super().__init__(build)
        self.before = Build(against) if against else None
        self.cores = len(separate_cores())
        candidates = [torch_python, sys.executable, beside_libtorch(build)]
        self._pythons = [p for p in candidates if p and os.path.exists(p)]
        self.torch_python, self.torch_version = self.python_with("torch")

    def mpirun(self, package):
        """The launcher of an MPI from pip that the build has programs for, or of the system's (None); None where it
        is not installed."""
        if package is None:
            return shutil.which("mpirun")
        folder = cached(self.build, "TUTTI_BENCH_MPI")
        path = folder and os.path.join(folder, package, "bin", "mpirun")
        return path if path and os.path.exists(path) else None

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
    found = re.match(r"(.*?)/lib/python[^/]*/site-packages/", cached(build, "Torch_DIR") or "")
    return found and os.path.join(found.group(1), "bin", "python3")


class Settings:
    def __init__(self, arguments):
        quick = arguments.quick
        self.quick = quick
        self.workers = arguments.workers
        self.largest = (arguments.largest_mib or (4 if quick else 256)) * 1024 * 1024
        self.rounds = arguments.rounds or (2 if quick else 30 if arguments.against else 9)
        self.burst = 0.01 if quick else 0.06
        self.most = 2000 if quick else 20000
        self.restarts = 1 if quick else 6 if arguments.against else 3
        self.steps = 4 if quick else 15
        self.touch = arguments.touch
        self.models = arguments.models
        self.system_malloc = arguments.system_malloc
        self.layouts = arguments.layouts
        self.codecs = arguments.codec
        self.averaging = arguments.averaging
        self.links = arguments.links


class Run:
    """The questions of one call, each with its record."""

    def __init__(self, tools, settings, questions, results, run_identity):
        self._tools = tools
        self._settings = settings
        self._questions = questions
        self._identity = run_identity
        self._paths = {name: os.path.join(results, name + ".json") for name in questions}
        self._cells = {name: question.cells(tools, settings) for name, question in questions.items()}
        self._records = {}
        self._progress = None

    def start(self):
        for name, question in self._questions.items():
            self._records[name] = Record.start(self._paths[name], name, self._identity, self._cells[name],
                                               self._settings.quick, is_timed(question))

    def resume(self):
        """Refuses, by SystemExit, unless all that decides figures is what it was."""
        found = {name: Record.read(path) for name, path in self._paths.items() if os.path.exists(path)}
        if not any(found.values()):
            sys.exit(f"nothing to resume: there is none of {', '.join(self._paths.values())}")
        for name in self._questions:
            if not found.get(name):
                sys.exit(f"cannot resume: {self._paths[name]} is not of such a run")
            differing = differences(found[name]["run"], self._identity)
            if differing:
                sys.exit(f"cannot resume {self._paths[name]}: not the run that was interrupted\n  "
                         + "\n  ".join(differing) + "\nWithout --resume everything is measured afresh.")
            self._records[name] = Record.resume(self._paths[name], self._cells[name])

    def measure(self, draw):
        """Each question's table is printed when it is complete; of the one that a signal or a failure ends,
        what there is of it."""
        done = [(name, cell["seconds"]) for name, record in self._records.items()
                for cell in record.measured().values()]
        self._progress = Progress({name: len(record.left()) for name, record in self._records.items()},
                                  {name: question.CELL_SECONDS for name, question in self._questions.items()}, done)
        for name in self._questions:
            try:
                self._measure(name)
            finally:
                self._progress.clear()
                self._show(name)
            draw(name, self._paths[name], not self._records[name].reasons())

    def _measure(self, name):
        record, question = self._records[name], self._questions[name]
        left = {cell: self._cells[name][cell] for cell in record.left()}
        if not left:
            return
        names = iter([*left, None])
        watch = Watch(on_round=self._progress.tick)
        interrupt.check()
        self._progress.begin(name, next(names))
        since = time.monotonic()
        with contextlib.closing(question.measure(self._tools, self._settings, left, watch)) as cells:
            for cell, value in cells:
                seconds = time.monotonic() - since
                since += seconds
                record.add(cell, value, seconds, watch.take())
                self._progress.done(name, seconds)
                if record.left():
                    interrupt.check()
                    self._progress.begin(name, next(names))

    def _show(self, name):
        record = self._records[name]
        if record.measured():
            self._questions[name].show(view(Record.read(self._paths[name]), self._questions[name]))
        reasons = record.reasons()
        if reasons:
            print("\nNot to be quoted:\n" + "\n".join(f"  {reason}" for reason in reasons))
        print(f"\nnumbers: {self._paths[name]}", flush=True)


def draw(tools, source, picture):
    python, _ = tools.python_with("matplotlib")
    plot = os.path.join(HERE, "plot.py")
    if not python:
        print(f"no picture: matplotlib is missing (pip install matplotlib, then {plot} {source} {picture})")
        return
    try:
        print(output_of([python, plot, source, picture]), end="")
    except subprocess.CalledProcessError as error:
        print(f"no picture: {plot} failed\n{error.stderr[-2000:]}")


def layout(text):
    if not layout_of(text):
        raise argparse.ArgumentTypeError(f"{text} is none such as 2x1 or 2x2@10gbit")
    return text


def parse_arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default=os.path.join(PROJECT, "build"),
                        help="build folder, configured with -DTUTTI_BENCH=ON; default: build")
    parser.add_argument("--only", choices=QUESTIONS, action="append", help="default: all questions")
    parser.add_argument("--quick", action="store_true", help="a minute or two: does it work, not how fast")
    parser.add_argument("--resume", action="store_true",
                        help="measure what an interrupted run left;\n"
                             "refused unless commit, machine and options are the same")
    parser.add_argument("--results", help="folder for JSON files; default BUILD/bench/results, with --quick\n"
                                          "BUILD/bench/quick")
    parser.add_argument("--pictures", help="folder for pictures of figures that may be quoted; others, and by\n"
                                           "default all, land beside the JSON files")
    parser.add_argument("--torch-python", help="a Python that has torch 2.x")
    parser.add_argument("--against", metavar="DIR",
                        help="another build folder: step and all_reduce measure Tutti of both builds, in the same\n"
                             "rounds (30 by default), and nobody else; its columns are \"…, before\". Numbers land\n"
                             "in BUILD/bench/against, pictures beside them")
    parser.add_argument("--rounds", type=int, help="turns that every contestant takes")
    parser.add_argument("--workers", type=int, nargs="+", choices=(2, 4), default=[2, 4],
                        help="worker counts of all_reduce and step")
    parser.add_argument("--largest-mib", type=int,
                        help="largest message of all_reduce; default 256, with --quick 4")
    parser.add_argument("--touch", action="store_true",
                        help="all_reduce: every rank rewrites its data before each call")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS,
                        help="models of step, memory and hosts")
    parser.add_argument("--system-malloc", action="store_true",
                        help="step: leave malloc's settings alone (see docs/benchmarks.md)")
    parser.add_argument("--layouts", nargs="+", metavar="HxW[@RATE]", type=layout,
                        help="hosts: H hosts of W workers each, behind links of 1gbit or 10gbit; default: all that\n"
                             "docs/benchmarks.md names")
    parser.add_argument("--codec", nargs="+", default=[], metavar="CODEC",
                        help="hosts: the Trainer with each of them, too; int8, topk:0.01, …")
    parser.add_argument("--averaging", nargs="+", default=[], metavar="POLICY",
                        help="hosts: the Trainer with each of them, too; diloco:32, …")
    parser.add_argument("--links", nargs="+", default=[], metavar="LINK",
                        help="hosts: the Trainer with each value of TUTTI_LINK, too, if this version reads\nthat variable")
    parser.add_argument("--check-options", action="store_true", help="refuse wrong options, and do nothing else")
    arguments = parser.parse_args(words)
    if arguments.against:
        arguments.against = os.path.abspath(arguments.against)
        arguments.only = arguments.only or AGAINST
        if not set(arguments.only) <= set(AGAINST):
            parser.error(f"--against is for {' and '.join(AGAINST)}")
        if not os.path.exists(os.path.join(arguments.against, "bin", "tutti")):
            parser.error(f"--against {arguments.against}: there is no bin/tutti in it")
    return arguments


def main(words=None, questions=None, draw_picture=draw):
    """Tests bring questions of their own, and draw nothing."""
    arguments = parse_arguments(words)
    if arguments.check_options:
        return
    interrupt.note_signals()
    build = os.path.abspath(arguments.build)
    kind = "against" if arguments.against else "quick" if arguments.quick else "results"
    results = os.path.abspath(arguments.results or os.path.join(build, "bench", kind))
    pictures = os.path.abspath(arguments.pictures or results) if not arguments.against else results
    for folder in (results, pictures):
        os.makedirs(folder, exist_ok=True)
    tools = Tools(build, arguments.torch_python, arguments.against)
    questions = questions or {name: QUESTIONS[name] for name in arguments.only or QUESTIONS}
    options = {"--" + name.replace("_", "-"): value for name, value in vars(arguments).items()
               if name not in ELSEWHERE}
    run = Run(tools, Settings(arguments), questions, results,
              identity(PROJECT, build, tools.torch_version, {**options, "--only": list(questions)}))
    if arguments.resume:
        run.resume()
    else:
        run.start()
    try:
        run.measure(lambda name, source, quotable: draw_picture(
            tools, source, os.path.join(pictures if quotable else results, name + ".png")))
    except interrupt.Interrupted as interrupted:
        print(f"\n{interrupted}. What is measured is kept: the same command with --resume measures the rest.",
              flush=True)
        interrupt.end_by(interrupted.number)
    except (Failed, OSError, subprocess.CalledProcessError) as error:
        complaint = getattr(error, "stderr", None) or ""
        sys.exit(f"\n{error}\n{complaint[-2000:]}\nWhat is measured is kept: the same command with --resume measures "
                 "the rest.")


if __name__ == "__main__":
    main()
