"""What the tests of bench/ share: its modules, and a run as a child."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(HERE, os.pardir, os.pardir, "bench")
sys.path.insert(0, BENCH)
DEADLINE = 150.0  # seconds; a loaded machine may need some


class Folder(unittest.TestCase):
    """Each test has a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read(self, *names):
        with open(self.path(*names), encoding="utf-8") as file:
            return file.read()

    def read_json(self, *names):
        return json.loads(self.read(*names))

    def wait_for(self, condition, what):
        limit = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > limit:
                self.fail(f"{what} did not happen within {DEADLINE} s")
            time.sleep(0.01)


class Runs(Folder):
    """Calls bench/run.py, on the questions of fake_run.py or on all of a fake build."""

    def start(self, *options, **environment):
        return subprocess.Popen(
            [sys.executable, os.path.join(HERE, "fake_run.py"), "--build", self.folder, "--results", self.path("r"),
             *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": self.folder, "FAKE_LOG": self.path("log"), **environment})

    def call(self, *options, **environment):
        """Its exit status, what it printed, and what it complained of."""
        with self.start(*options, **environment) as process:
            output, complaint = self.finish(process)
        return process.returncode, output, complaint

    def finish(self, process):
        try:
            return process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            return self.fail(f"no end within {DEADLINE} s")

    def measured(self):
        """Cells that any call has measured, in order."""
        return self.read("log").split() if os.path.exists(self.path("log")) else []


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
