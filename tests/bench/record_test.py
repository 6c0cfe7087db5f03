"""A file of results is whole whenever it is read, whatever happens to who writes it."""

import os
import signal
import subprocess
import sys
import unittest

import support
from common.record import Record, write_whole

WRITER = """
import sys
sys.path.insert(0, {0!r})
from common.record import Record
record = Record.start({1!r}, "many", {{}}, [str(n) for n in range(10**6)], False, True)
for n in range(10**6):
    record.add(str(n), ["x"] * 50_000, 1.0, {{"looks": 1, "mean": 0, "worst": 0}})
"""


class Results(support.Folder):
    def test_is_whole_whenever_it_is_read(self):
        path = self.path("file.json")
        writer = subprocess.Popen([sys.executable, "-c", WRITER.format(support.BENCH, path)])
        try:
            self.wait_for(lambda: os.path.exists(path), "the first cell")
            seen = set()
            while len(seen) < 8:
                content = Record.read(path)
                self.assertIsNotNone(content, "half a file was read")
                seen.add(len(content["cells"]))
        finally:
            writer.kill()
            writer.wait()

    def test_is_whole_after_kill_9(self):
        for turn in range(8):
            path = self.path(f"{turn}.json")
            with subprocess.Popen([sys.executable, "-c", WRITER.format(support.BENCH, path)]) as writer:
                # Killed amid the writing of a later cell.
                self.wait_for(lambda: os.path.exists(path) and os.path.getsize(path) > (turn + 1) * 300_000,
                              "a cell")
                writer.send_signal(signal.SIGKILL)
            content = Record.read(path)
            self.assertIsNotNone(content, "half a file was left")
            self.assertEqual([cell["name"] for cell in content["cells"]],
                             [str(n) for n in range(len(content["cells"]))])

    def test_that_cannot_be_written_stays_what_it_was(self):
        write_whole(self.path("file"), {"before": 1})
        with self.assertRaises(TypeError):
            write_whole(self.path("file"), {"before": 2, "no JSON": object()})
        self.assertEqual(self.read_json("file"), {"before": 1})


if __name__ == "__main__":
    unittest.main()
