"""bench/run.py with two small questions instead of its own, for tests; the environment decides what happens:

    FAKE_LOG=PATH            each cell that is measured adds its name there
    FAKE_STOP=CELL:SIGNAL    the driver gets the signal while it measures the cell
    FAKE_OTHERS=CELL:SHARE   others take that share of the processors then
    FAKE_BLIND=1             the kernel does not tell what they take
    FAKE_ALL=1               all real questions, of a build that FAKE_BUILD's programs stand in for
"""

import os
import signal
import subprocess
import sys
import time

import support
import run
from common import interrupt, watch
from common.report import marked, table


def setting(name):
    cell, _, value = os.environ.get(name, ":").partition(":")
    return cell, value


class FakeQuestion:
    CELL_SECONDS = 1

    def __init__(self, names):
        self._names = names

    def cells(self, _, settings):
        return {name: settings.rounds for name in self._names}

    def measure(self, _, __, left, watch_):
        for name, rounds in left.items():
            Processors.cell = name
            with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
                log.write(name + "\n")
            for _ in range(rounds):
                with watch_.round():
                    stop, number = setting("FAKE_STOP")
                    if stop == name and number == "FAIL":
                        raise subprocess.CalledProcessError(3, ["contestant"], stderr="no such luck")
                    if stop == name:
                        os.kill(os.getpid(), getattr(signal, number))
                        interrupt.check()
            yield name, {"driver": os.getpid()}

    def result(self, values):
        return {"entries": values}

    def show(self, result):
        names = [cell["name"] for cell in result["cells"]]
        print(table(["cell", "driver"], [[marked(name, entry), entry["driver"]]
                                         for name, entry in zip(names, result["entries"])]))


class Processors:
    """A kernel's accounts in which each look is two seconds after the last, and of which others take their share."""

    cell = None
    now = busy = 0.0

    @classmethod
    def read(cls):
        if os.environ.get("FAKE_BLIND"):
            return None
        cell, share = setting("FAKE_OTHERS")
        passed = 2.0 * len(os.sched_getaffinity(0))
        cls.now += passed
        cls.busy += passed * (float(share) if cell == cls.cell else 0.01)
        return watch.Usage(cls.now, cls.busy, 0.0)


run.Tools.python_with = lambda *_: (None, None)
if os.environ.get("FAKE_ALL"):
    run.main(draw_picture=lambda *_: None)
else:
    watch.processor_seconds = Processors.read
    run.main(questions={"first": FakeQuestion(["a", "b", "c"]), "second": FakeQuestion(["d", "e"])},
             draw_picture=lambda *_: None)
