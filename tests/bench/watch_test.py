"""Others' use of the processors is seen while cells are measured, and marks what it disturbed."""

import os
import subprocess
import sys
import time
import unittest

import support
from common import watch

SPIN = "import time\nwhile time.process_time() < 0.5: pass\nprint('spun', flush=True)\nopen({0!r}).read()"


class Accounts(support.Folder):
    """The kernel's own, under real load. What others of the machine do makes no difference."""

    def spin(self, *launcher):
        """Half a second of a processor, by a child that then waits, and what it changed; ends it."""
        os.mkfifo(self.path("end"))
        before = watch.processor_seconds()
        command = [*launcher, sys.executable, "-c", SPIN.format(self.path("end"))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            self.assertEqual(child.stdout.readline(), "spun\n")
            while_it_waits = watch.processor_seconds()
            with open(self.path("end"), "w", encoding="ascii"):
                pass
        after = watch.processor_seconds()
        return while_it_waits.own - before.own, after.own - before.own, after.busy - before.busy

    def test_a_childs_time_is_ours_while_it_lives_and_after(self):
        living, waited_for, busy = self.spin()
        self.assertGreater(living, 0.4)
        self.assertGreaterEqual(waited_for, living)
        self.assertGreater(busy, 0.3)

    def test_a_grandchilds_time_is_ours(self):
        living, waited_for, _ = self.spin("/bin/sh", "-c", '"$@"; true', "sh")
        self.assertGreater(living, 0.4)
        self.assertGreater(waited_for, 0.4)

    def test_an_orphans_time_is_others(self):
        """It has no parent among us."""
        living, waited_for, busy = self.spin("/bin/sh", "-c", '"$@" & exit', "sh")
        self.assertLess(living, 0.3)
        self.assertLess(waited_for, 0.3)
        self.assertGreater(busy - waited_for, 0.2)

    def test_all_of_our_processors_pass_with_time(self):
        before = watch.processor_seconds()
        since = time.monotonic()
        time.sleep(0.5)
        passed = watch.processor_seconds().all - before.all
        self.assertAlmostEqual(passed / (time.monotonic() - since) / len(os.sched_getaffinity(0)), 1, delta=0.3)


class Shares(unittest.TestCase):
    """The kernel's accounts are the test's own."""

    def setUp(self):
        self._now = watch.Usage(100.0, 50.0, 20.0)
        self._rounds = 0
        self.watch = watch.Watch(lambda: self._now, self._count)
        self.processors = len(os.sched_getaffinity(0))

    def _count(self):
        self._rounds += 1

    def pass_by(self, seconds, own=0.0, others=0.0):
        every = seconds * self.processors
        self._now = watch.Usage(self._now.all + every, self._now.busy + (own + others) * every,
                                self._now.own + own * every)

    def a_round(self, *use, **uses):
        with self.watch.round():
            self.pass_by(*use, **uses)

    def test_our_own_use_is_no_others(self):
        self.a_round(2, own=0.9)
        self.assertEqual(self.watch.take()["worst"], 0)

    def test_each_round_has_its_look(self):
        self.a_round(2, own=0.5, others=0.3)
        self.a_round(2, own=0.5, others=0.1)
        seen = self.watch.take()
        self.assertEqual(seen["looks"], 2)
        self.assertAlmostEqual(seen["worst"], 0.3)
        self.assertAlmostEqual(seen["mean"], 0.2)
        self.assertEqual(self._rounds, 2)

    def test_between_rounds_others_do_not_matter(self):
        self.a_round(2, others=0.05)
        self.pass_by(10, others=1)
        self.a_round(2, others=0.05)
        self.assertAlmostEqual(self.watch.take()["worst"], 0.05)

    def test_short_rounds_share_a_look(self):
        for _ in range(8):
            self.a_round(0.25, others=0.04)
        self.a_round(0.25, others=1)
        seen = self.watch.take()
        self.assertEqual(seen["looks"], 2)
        self.assertAlmostEqual(seen["worst"], (4 * 0.04 + 1) / 5)

    def test_a_short_cell_has_one_look(self):
        self.a_round(0.1, others=0.5)
        self.assertEqual(self.watch.take()["looks"], 1)

    def test_a_round_of_less_than_a_hundredth_is_a_look(self):
        self.a_round(0)
        self.assertEqual(self.watch.take(), {"looks": 1, "mean": 0, "worst": 0})

    def test_cells_do_not_share(self):
        self.a_round(2, others=0.5)
        self.watch.take()
        self.a_round(2)
        self.assertEqual(self.watch.take(), {"looks": 1, "mean": 0, "worst": 0})

    def test_nothing_timed_is_undisturbed(self):
        self.assertEqual(self.watch.take(), {"looks": 0, "mean": 0, "worst": 0})

    def test_blindness_is_not_quiet(self):
        self.a_round(2)
        self._now = None
        with self.watch.round():
            pass
        self.assertEqual(self.watch.take(), {"looks": 1, "mean": None, "worst": None})
        self.pass_by_again()
        self.assertEqual(self.watch.take()["worst"], 0)

    def pass_by_again(self):
        self._now = watch.Usage(0.0, 0.0, 0.0)
        self.a_round(2)


class Mark(support.Runs):
    def test_a_disturbed_cell_is_marked_and_nothing_is_quotable(self):
        status, output, _ = self.call(FAKE_OTHERS="b:0.3")
        self.assertEqual(status, 0)
        first = self.read_json("r", "first.json")
        self.assertEqual([cell["disturbed"] for cell in first["cells"]], [False, True, False])
        self.assertAlmostEqual(first["cells"][1]["others"]["worst"], 0.3)
        reason = "b: others took up to 30 % of the processors, 30 % on average"
        self.assertFalse(first["quotable"])
        self.assertEqual(first["not_quotable_because"], [reason])
        self.assertIn("\nb *", output)
        self.assertNotIn("a *", output)
        self.assertIn(f"Not to be quoted:\n  {reason}\n", output)
        self.assertTrue(self.read_json("r", "second.json")["quotable"])

    def test_a_quiet_run_is_quotable(self):
        _, output, _ = self.call()
        self.assertTrue(self.read_json("r", "first.json")["quotable"])
        self.assertNotIn("Not to be quoted", output)
        self.assertNotIn("*", output)

    def test_a_mark_outlives_the_interruption(self):
        self.call(FAKE_OTHERS="b:0.3", FAKE_STOP="c:SIGTERM")
        _, output, _ = self.call("--resume")
        self.assertFalse(self.read_json("r", "first.json")["quotable"])
        self.assertIn("\nb *", output)

    def test_what_cannot_be_seen_is_not_quotable(self):
        _, output, _ = self.call(FAKE_BLIND="1")
        self.assertIn("what others take of the processors could not be seen during 3 cells", output)
        self.assertFalse(self.read_json("r", "first.json")["quotable"])

    def test_a_quick_run_is_not_quotable(self):
        _, output, _ = self.call("--quick")
        self.assertIn("Not to be quoted:\n  it is a --quick run\n", output)
        self.assertFalse(self.read_json("r", "first.json")["quotable"])


if __name__ == "__main__":
    unittest.main()
