"""Each real question is measured cell by cell, can be shown at any moment, and ends what it has started. Programs of
a build are fakes that answer at once."""

import contextlib
import io
import json
import os
import signal
import sys
import unittest

import support
from all_reduce import all_reduce
from common import identity, record
from common.contestants import separate_cores
from questions import QUESTIONS

PROGRAMS = ("tutti", "bench_all_reduce_gloo", "bench_all_reduce_probe", "bench_all_reduce_tensor",
            "bench_all_reduce_tutti", "bench_classifier", "bench_hosts_probe", "bench_lanes",
            "bench_merge", "bench_pipeline", "bench_recompute", "bench_selection", "bench_speeds", "bench_step_barrier", "bench_step_gloo",
            "bench_step_process",
            "bench_step_trainer", "bench_step_tutti", "char_lm", "update_bench")
OPTIONS = ("--quick", "--workers", "2", "--largest-mib", "1", "--models", "lstm")


class Build(support.Runs):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))

    def build(self):
        for name in PROGRAMS:
            self.add_program("bin", name)

    def add_program(self, *path):
        with open(self.path(*path), "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable} -SE\nimport sys\nsys.path.insert(0, {support.HERE!r})\n"
                       "import fake_program\n")
        os.chmod(file.name, 0o755)

    def add_mpi(self, package):
        """An MPI as script/bench installs it, and a build for it."""
        os.makedirs(self.path("mpi", package, "bin"))
        self.add_program("mpi", package, "bin", "mpirun")
        self.add_program("bin", f"bench_all_reduce_{package}")
        with open(self.path("CMakeCache.txt"), "w", encoding="utf-8") as file:
            file.write(f"TUTTI_BENCH_MPI:PATH={self.path('mpi')}\n")

    def result(self, question):
        return self.read_json("r", question + ".json")


class Measured(Build):
    """One test for each question: a loaded machine takes its time."""

    def expect_shown_at_any_moment(self, name):
        self.build()
        status, output, complaint = self.call(*OPTIONS, "--only", name, FAKE_ALL="1")
        self.assertEqual(status, 0, complaint)
        self.assertIn(f"{name}.json", output)
        content, question = self.result(name), QUESTIONS[name]
        self.assertTrue(content["complete"])
        self.assertEqual(content["not_quotable_because"][0], "it is a --quick run")
        for cell in content["cells"]:
            if cell["value"].get("row", True) is None:
                continue  # Missing.
            self.assertGreater(cell["others"]["looks"], 0, f"nobody watched {cell['name']}")
        for measured in range(len(content["cells"]) + 1):
            some = {**content, "cells": content["cells"][:measured]}
            with self.subTest(measured=measured), open(os.devnull, "w", encoding="utf-8") as null:
                with contextlib.redirect_stdout(null):
                    shown = record.view(some, question)
                    if measured:
                        question.show(shown)

    def test_all_questions_have_a_test(self):
        for name in QUESTIONS:
            self.assertTrue(hasattr(self, f"test_{name}"), name)

    def test_all_reduce(self):
        self.expect_shown_at_any_moment("all_reduce")

    def test_step(self):
        self.expect_shown_at_any_moment("step")

    def test_memory(self):
        self.expect_shown_at_any_moment("memory")

    def test_update(self):
        self.expect_shown_at_any_moment("update")

    def test_selection(self):
        self.expect_shown_at_any_moment("selection")

    def test_codec(self):
        self.expect_shown_at_any_moment("codec")

    def test_convergence(self):
        self.expect_shown_at_any_moment("convergence")

    def test_embedding(self):
        self.expect_shown_at_any_moment("embedding")

    def test_fusion(self):
        self.expect_shown_at_any_moment("fusion")

    def test_classifier(self):
        self.expect_shown_at_any_moment("classifier")

    def test_speeds(self):
        self.expect_shown_at_any_moment("speeds")
        [cell] = self.result("speeds")["cells"]
        self.assertAlmostEqual(cell["value"]["faster"], 1.5)

    def test_lanes(self):
        self.expect_shown_at_any_moment("lanes")

    def test_recompute(self):
        self.expect_shown_at_any_moment("recompute")

    def test_pipeline(self):
        self.expect_shown_at_any_moment("pipeline")
        [cell] = self.result("pipeline")["cells"]
        columns = cell["value"]["columns"]
        self.assertLessEqual({"Tutti, one worker", "Tutti, gpipe", "Tutti, 1f1b", "Tutti, zb-h1"}, set(columns))
        # The fake's bounds are 1000, 1001, 1002 ns, its updates 1001 ns in the middle, its steps 1002.
        for k, schedule in enumerate(("gpipe", "1f1b", "zb-h1")):
            self.assertAlmostEqual(columns[f"Tutti, {schedule}"]["share"], (1000 + k + 1001 / 2) / 1002)
        self.assertEqual(cell["value"]["parts"]["1"]["whole backward"], 1010 / 1e6)

    def test_merge(self):
        self.expect_shown_at_any_moment("merge")

    def test_level(self):
        self.expect_shown_at_any_moment("level")

    def test_hosts(self):
        self.expect_shown_at_any_moment("hosts")


class Rivals(Build):
    """MPIs from pip in all_reduce."""

    def columns(self, *packages):
        """{column: ratios to others} at the first size, and what was printed."""
        if len(separate_cores()) < 2:
            self.skipTest("two workers are more than there are cores")
        self.build()
        for package in packages:
            self.add_mpi(package)
        status, output, complaint = self.call(*OPTIONS, "--only", "all_reduce", FAKE_ALL="1", PATH="")
        self.assertEqual(status, 0, complaint)
        return self.result("all_reduce")["cells"][0]["value"]["columns"], output

    def test_each_has_a_column_and_counts_for_the_aims(self):
        columns, output = self.columns("openmpi", "mpich")
        for name in ("Open MPI 5", "MPICH 5"):
            self.assertEqual(columns["Tutti arena"]["times_faster_than"][name], 1)
            self.assertNotIn(f"{name} is missing", output)
        header = next(line for line in output.splitlines() if "µs over probe" in line)
        self.assertEqual(header.split(), "Gloo Open MPI Open MPI 5 MPICH 5 probe µs over probe met".split())

    def test_one_that_is_not_installed_is_named_with_its_remedy(self):
        columns, output = self.columns("mpich")
        self.assertIn("Open MPI 5 is missing: script/bench installs it from pip", output)
        self.assertNotIn("Open MPI 5", columns)
        self.assertIn("MPICH 5", columns)

    def test_mpich_is_left_out_with_more_workers_than_cores(self):
        class Tools:
            cores = 2
            torch_python = None
            before = None

            def program(self, name):
                return name

            def mpirun(self, package):
                return "mpirun"

        for size, left_out in ((2, False), (4, True)):
            missing = all_reduce.contestants(Tools(), size, 1024)[1]
            self.assertEqual("whole time slices" in missing["MPICH 5"], left_out, size)

    def test_one_that_is_not_slower_misses_the_aim(self):
        self.assertFalse(all_reduce.met({"bytes": 1024}, {"times_faster_than": {"MPICH 5": 1}, "more_us_than": {}}))
        self.assertTrue(all_reduce.met({"bytes": 1024}, {"times_faster_than": {"MPICH 5": 1.01}, "more_us_than": {}}))


class Against(Build):
    """Another build's Tutti in the same rounds."""

    def setUp(self):
        super().setUp()
        self.build()
        os.makedirs(self.path("old", "bin"))
        for name in PROGRAMS:
            if name != "bench_all_reduce_tensor":
                self.add_program("old", "bin", name)

    def test_has_columns_beside_ours_and_no_rivals(self):
        status, output, complaint = self.call(*OPTIONS, "--against", self.path("old"), FAKE_ALL="1")
        self.assertEqual(status, 0, complaint)
        self.assertFalse(os.path.exists(self.path("r", "memory.json")))
        columns = self.result("step")["cells"][0]["value"]["columns"]
        self.assertEqual(set(columns), {"Tutti Trainer", "Tutti DataParallel", "no sync, C++", "Tutti Trainer, before",
                                        "Tutti DataParallel, before"})
        self.assertEqual(columns["Tutti Trainer"]["ratio_to_before"], 1)
        self.assertIsNone(columns["no sync, C++"]["ratio_to_before"])
        cell = self.result("all_reduce")["cells"][0]["value"]
        self.assertEqual(set(cell["columns"]), {"Tutti arena", "Tutti staged", "Tutti tensor", "Tutti arena, before",
                                                "Tutti staged, before"})
        self.assertEqual(cell["columns"]["Tutti staged"]["ratio_to_before"], 1)
        self.assertIn("Tutti tensor, before", cell["missing"])
        self.assertIn("Time ÷ that of the build before", output)

    def test_is_refused_for_other_questions_and_folders(self):
        for words, text in ((("--against", self.path("old"), "--only", "memory"), "--against is for all_reduce and step"),
                            (("--against", self.path("r")), "there is no bin/tutti in it")):
            status, _, complaint = self.call(*OPTIONS, *words, FAKE_ALL="1")
            self.assertEqual(status, 2)
            self.assertIn(text, complaint)


class Pictures(Build):
    def test_are_drawn_of_all_questions(self):
        try:
            import plot
        except ImportError as error:
            self.skipTest(str(error))
        self.build()
        self.call(*OPTIONS, FAKE_ALL="1")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for name in QUESTIONS:
                with self.subTest(question=name):
                    plot.main(self.path("r", f"{name}.json"), self.path(f"{name}.png"))
                    self.assertIn(f"picture: {self.path(name)}.png", printed.getvalue())
                    self.assertGreater(os.path.getsize(self.path(f"{name}.png")), 1000)


class Sources(unittest.TestCase):
    def test_are_python(self):
        """Also those that no test runs, for want of matplotlib or torch."""
        files = [path for path in identity.files_below(support.BENCH) if path.endswith(".py")]
        self.assertGreater(len(files), 20)
        for path in files:
            with open(path, encoding="utf-8") as file:
                compile(file.read(), path, "exec")


class Questions(Build):
    def test_without_programs_name_what_is_missing(self):
        status, output, complaint = self.call(*OPTIONS, FAKE_ALL="1")
        self.assertEqual(status, 0, complaint)
        for program in ("update_bench", "bench_selection", "bench_merge", "char_lm", "probe", "Gloo by hand",
                        "Tutti Trainer, row-sparse"):
            self.assertIn(f"{program} is missing: ", output)
        self.assertNotIn("could not be seen", output)

    def test_resume_between_cells_of_one_start_of_the_contestants(self):
        self.build()
        self.call(*OPTIONS, "--only", "all_reduce", FAKE_ALL="1")
        content = self.result("all_reduce")
        self.assertEqual([cell["name"] for cell in content["cells"]],
                         [f"2 workers, {size}" for size in ("1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB")])
        some = {**content, "cells": content["cells"][:4]}
        with open(self.path("r", "all_reduce.json"), "w", encoding="utf-8") as file:
            json.dump(some, file)
        status, _, complaint = self.call(*OPTIONS, "--only", "all_reduce", "--resume", FAKE_ALL="1")
        self.assertEqual(status, 0, complaint)
        after = self.result("all_reduce")
        self.assertEqual(after["cells"][:4], content["cells"][:4])
        self.assertEqual([c["name"] for c in after["cells"]], [c["name"] for c in content["cells"]])


class Contestants(Build):
    """End with the run, also amid a round that takes long."""

    def expect_ended(self, number, question, **how):
        self.build()
        with self.start(*OPTIONS, "--only", question, FAKE_ALL="1", FAKE_PIDS=self.path("pids"), **how) as process:
            self.wait_for(lambda: os.path.exists(self.path("pids")), "the first contestant")
            process.send_signal(number)
            self.finish(process)
        self.assertEqual(process.returncode, -number)
        for pid in self.read("pids").split():
            self.wait_for(lambda: not support.is_alive(int(pid)), f"the end of contestant {pid}")
        if number != signal.SIGKILL:
            self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("bench-")], [])

    def test_that_do_not_listen_end_with_sigterm(self):
        self.expect_ended(signal.SIGTERM, "step", FAKE_HANG="steps")

    def test_end_with_sigint(self):
        self.expect_ended(signal.SIGINT, "all_reduce", FAKE_SLOW="gloo")

    def test_end_with_kill_9(self):
        self.expect_ended(signal.SIGKILL, "all_reduce", FAKE_SLOW="gloo")


if __name__ == "__main__":
    unittest.main()
