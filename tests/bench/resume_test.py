"""A run that is ended, however, loses no cell that was measured, and is resumed where it ended."""

import json
import os
import signal
import unittest

import support


class Interrupt(support.Runs):
    def expect_ended_by(self, number):
        status, output, complaint = self.call(FAKE_STOP=f"c:{number.name}")
        self.assertEqual(status, -number, complaint)
        first = self.read_json("r", "first.json")
        self.assertEqual([cell["name"] for cell in first["cells"]], ["a", "b"])
        self.assertFalse(first["complete"])
        self.assertFalse(first["quotable"])
        return output

    def expect_table_so_far(self, number):
        output = self.expect_ended_by(number)
        for word in ("\na ", "\nb ", f"interrupted by {number.name}", "--resume",
                     "Not to be quoted:\n  1 of 3 cells are not measured yet"):
            self.assertIn(word, output)
        self.assertNotIn("\nc ", output)

    def test_sigint_prints_the_table_so_far(self):
        self.expect_table_so_far(signal.SIGINT)

    def test_sigterm_prints_the_table_so_far(self):
        self.expect_table_so_far(signal.SIGTERM)

    def test_kill_9_leaves_a_whole_file(self):
        self.expect_ended_by(signal.SIGKILL)

    def test_a_failing_contestant_leaves_the_table_so_far(self):
        status, output, complaint = self.call(FAKE_STOP="c:FAIL")
        self.assertEqual(status, 1)
        self.assertIn("\nb ", output)
        self.assertIn("no such luck", complaint)
        self.assertIn("--resume", complaint)
        self.assertEqual(len(self.read_json("r", "first.json")["cells"]), 2)


class Resume(support.Runs):
    def expect_resumed(self, number):
        self.call(FAKE_STOP=f"b:{number.name}")
        before = self.read_json("r", "first.json")["cells"]
        status, output, complaint = self.call("--resume")
        self.assertEqual(status, 0, complaint)
        self.assertEqual(self.measured(), ["a", "b", "b", "c", "d", "e"])
        first = self.read_json("r", "first.json")
        self.assertEqual([cell["name"] for cell in first["cells"]], ["a", "b", "c"])
        self.assertEqual(first["cells"][:1], before)
        self.assertTrue(first["complete"] and first["quotable"])
        self.assertTrue(self.read_json("r", "second.json")["complete"])
        for cell in "abcde":
            self.assertIn(f"\n{cell} ", output)

    def test_measures_what_sigint_left(self):
        self.expect_resumed(signal.SIGINT)

    def test_measures_what_sigterm_left(self):
        self.expect_resumed(signal.SIGTERM)

    def test_measures_what_kill_9_left(self):
        self.expect_resumed(signal.SIGKILL)

    def test_keeps_questions_that_were_complete(self):
        self.call(FAKE_STOP="e:SIGTERM")
        self.call("--resume")
        self.assertEqual(self.measured(), ["a", "b", "c", "d", "e", "e"])

    def test_of_a_complete_run_prints_its_tables(self):
        self.call()
        status, output, _ = self.call("--resume")
        self.assertEqual(status, 0)
        self.assertIn("\ne ", output)
        self.assertEqual(self.measured(), ["a", "b", "c", "d", "e"])

    def expect_refused(self, difference, *options):
        before, measured = self.read("r", "first.json"), self.measured()
        status, output, complaint = self.call("--resume", *options)
        self.assertEqual((status, output), (1, ""))
        self.assertIn("cannot resume", complaint)
        self.assertIn("\n  " + difference + "\n", complaint)
        self.assertEqual(complaint.count("\n  "), 1, complaint)
        self.assertEqual((self.read("r", "first.json"), self.measured()), (before, measured))

    def test_refuses_other_options_by_name(self):
        self.call(FAKE_STOP="b:SIGTERM")
        self.expect_refused("--rounds: was None, is 3", "--rounds", "3")
        self.expect_refused("--touch: was False, is True", "--touch")

    def test_refuses_another_commit_sources_machine_or_libtorch_by_name(self):
        self.call(FAKE_STOP="b:SIGTERM")
        content = self.read_json("r", "first.json")
        for name in ("commit", "sources", "machine", "memory_bytes", "cpu", "cores", "kernel", "build", "libtorch"):
            now = content["run"][name]
            with open(self.path("r", "first.json"), "w", encoding="utf-8") as file:
                json.dump({**content, "run": {**content["run"], name: "other"}}, file)
            self.expect_refused(f"{name}: was other, is {now}")

    def test_refuses_without_a_run(self):
        status, _, complaint = self.call("--resume")
        self.assertEqual(status, 1)
        self.assertIn("nothing to resume", complaint)
        self.assertEqual(self.measured(), [])

    def test_refuses_results_of_something_else(self):
        self.call(FAKE_STOP="b:SIGTERM")
        with open(self.path("r", "first.json"), "w", encoding="utf-8") as file:
            file.write("[]")
        status, _, complaint = self.call("--resume")
        self.assertEqual(status, 1)
        self.assertIn("first.json is not of such a run", complaint)


class Afresh(support.Runs):
    def test_keeps_the_run_before(self):
        self.call(FAKE_STOP="c:SIGTERM")
        before = self.read("r", "first.json")
        self.call()
        self.assertEqual(self.read("r", "first.previous.json"), before)
        self.assertEqual(self.measured(), ["a", "b", "c", "a", "b", "c", "d", "e"])

    def test_keeps_it_also_from_runs_that_measured_nothing(self):
        self.call()
        before = self.read("r", "first.json")
        for _ in range(2):
            self.call(FAKE_STOP="a:SIGTERM")
        self.assertEqual(self.read("r", "first.previous.json"), before)

    def test_keeps_a_file_of_something_else(self):
        os.mkdir(self.path("r"))
        with open(self.path("r", "first.json"), "w", encoding="utf-8") as file:
            file.write('{"benchmark": "first"}')
        self.call()
        self.assertEqual(self.read("r", "first.previous.json"), '{"benchmark": "first"}')


if __name__ == "__main__":
    unittest.main()
