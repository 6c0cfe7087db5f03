"""What is left of a run is shown, and how long it may take."""

import io
import re
import unittest

import support
from common.progress import LINE_EVERY, Progress


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


class Line(unittest.TestCase):
    def make(self, terminal=False, done=()):
        self.now = 0.0
        self.stream = Stream(terminal)
        return Progress({"step": 3, "memory": 4}, {"step": 100, "memory": 10}, done, self.stream, lambda: self.now)

    def measure(self, progress, question, seconds):
        progress.begin(question, "a cell")
        self.now += seconds
        progress.done(question, seconds)

    def test_counts_cells_and_names_the_current_one(self):
        progress = self.make()
        self.measure(progress, "step", 1)
        progress.begin("step", "2 workers, mlp")
        self.assertRegex(progress.line(), r"^\[\d\d:\d\d:\d\d\] 1 of 7 cells done, 6 left, "
                                          r"less than a minute to go; step: 2 workers, mlp$")

    def test_of_a_resumed_run_counts_what_was_done(self):
        progress = self.make(done=[("step", 300.0)])
        progress.begin("step", "x")
        self.assertIn("1 of 8 cells done, 7 left", progress.line())

    def test_time_to_go_is_not_known_before_anything_is_measured(self):
        progress = self.make()
        progress.begin("step", "x")
        self.assertIn("time to go not known yet", progress.line())

    def test_time_to_go_is_that_of_cells_of_the_same_question(self):
        progress = self.make()
        self.measure(progress, "step", 200)
        self.measure(progress, "step", 400)
        progress.begin("step", "x")
        # One of 300 s; four of a question that usually takes a tenth of this one's time.
        self.assertAlmostEqual(progress.seconds_left(), 300 + 4 * 30)
        self.assertIn("about 7 min to go", progress.line())

    def test_time_to_go_falls_while_a_cell_is_measured(self):
        progress = self.make(done=[("step", 3600.0)])
        progress.begin("step", "x")
        before = progress.seconds_left()
        self.now += 600
        self.assertAlmostEqual(progress.seconds_left(), before - 600)
        self.now += 10**6  # Longer than any before: it may end at any moment.
        self.assertAlmostEqual(progress.seconds_left(), before - 3600)
        self.assertIn("about 2 h 24 min to go", progress.line())

    def test_elsewhere_than_on_a_terminal_comes_now_and_then(self):
        progress = self.make()
        for _ in range(30):
            progress.tick()
            progress.begin("step", "x")
            self.now += LINE_EVERY / 10
        lines = self.stream.getvalue().splitlines()
        self.assertEqual(len(lines), 3)
        self.assertTrue(all(re.match(r"\[..:..:..\] 0 of 7 cells done", line) for line in lines))

    def test_stays_in_place_on_a_terminal(self):
        progress = self.make(terminal=True)
        self.measure(progress, "step", 1)
        progress.begin("step", "x" * 1000)
        progress.clear()
        text = self.stream.getvalue()
        self.assertNotIn("\n", text)
        self.assertEqual(text.count("\r\x1b[K"), 3)  # two lines, and nothing
        self.assertTrue(text.endswith("\r\x1b[K"))
        self.assertLess(max(len(part) for part in text.split("\r")), 1000)


class OfARun(support.Runs):
    def test_is_printed_beside_the_tables(self):
        status, output, complaint = self.call()
        self.assertEqual(status, 0)
        self.assertIn("0 of 5 cells done, 5 left", complaint)
        self.assertNotIn("cells done", output)


if __name__ == "__main__":
    unittest.main()
