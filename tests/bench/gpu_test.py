"""bench/gpu/run, with fakes in place of the programs that it starts: what it says of digests, and that it ends."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# `tutti run -n N env NAME=VALUE… PROGRAM ARGUMENT…`: as many times the program, one after the other.
TUTTI = """
workers = int(sys.argv[3])
command = sys.argv[5:]
while "=" in command[0]:
    command.pop(0)
for rank in range(workers):
    status = subprocess.run([sys.executable, *command], env={**os.environ, "FAKE": f"{workers} {rank}"}).returncode
    if status != 0:
        sys.exit(status)
"""
# FAKE_FAULT: "differs" and "fails" with 2 workers and the model many, "hangs" and "seedless" always.
CHECK = """
import time
workers, rank = os.environ["FAKE"].split()
fault = os.environ.get("FAKE_FAULT", "") if workers == "2" and "many" in sys.argv else ""
if fault == "fails":
    sys.exit("no such kernel")
if os.environ.get("FAKE_FAULT") == "hangs":
    time.sleep(100)
fact = {"part": sys.argv[1], "workers": int(workers), "rank": int(rank)}
if sys.argv[1] == "exact":
    digest = ("b" if fault == "differs" and rank == "1" else "a") * 64
    seed = sys.argv[sys.argv.index("--seed") + 1] if "--seed" in sys.argv else "1"
    if seed != "1" and os.environ.get("FAKE_FAULT") != "seedless":
        digest = "d" * 64
    print(json.dumps({**fact, "model": sys.argv[3], "seed": int(seed), "sha256": digest}))
elif rank == "0" and sys.argv[1] == "time":
    print(json.dumps({**fact, "model": sys.argv[3], "times": int(sys.argv[5]), "plain_ms": 2.0, "tutti_ms": 4.0}))
elif sys.argv[1] == "faults":
    print(json.dumps({**fact, "fault": "none", "runs": 2, "wrong": 0}))
"""
EXAMPLE = """
workers, rank = os.environ["FAKE"].split()
print(f"[{rank}] epoch 1 of 1: loss 1, parameters sha256 " + "c" * 64)
"""


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in (("tutti", TUTTI), ("bench_gpu_check", CHECK), ("char_lm", EXAMPLE), ("mnist_parallel", EXAMPLE)):
            self.write(f"bin/{name}", f"#!{sys.executable}\nimport json, os, subprocess, sys\n" + textwrap.dedent(text))
            os.chmod(f"{self.folder}/bin/{name}", 0o755)
        self.write("commit", "abc\n")
        self.write("torch", "2.11.0\n")
        self.write("lib/libtest_device.so", "")
        self.write("torch_of_python/version.py", "__version__ = '2.11.0'\n")
        self.write("torch_of_python/lib/libtorch_cpu.so", "")
        shutil.copytree(f"{SOURCE}/bench/gpu", f"{self.folder}/bench/gpu")

    def write(self, name, text):
        path = f"{self.folder}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_all(self, **environment):
        """Status, the table, and the facts."""
        out = f"{self.folder}/out"
        done = subprocess.run(
            [f"{self.folder}/bench/gpu/run", "--device", "privateuseone"], capture_output=True, text=True, timeout=100,
            env={**os.environ, "GPU_TORCH": f"{self.folder}/torch_of_python", "GPU_SMALL": "1", "OUT": out,
                 "GPU_PYTHON": sys.executable, **environment})
        with open(f"{out}/table.txt", encoding="utf-8") as file:
            table = file.read()
        self.assertIn(table, done.stdout)
        with open(f"{out}/results.jsonl", encoding="utf-8") as file:
            return done.returncode, table, [json.loads(line) for line in file]

    def run_for_cuda(self):
        return subprocess.run([f"{self.folder}/bench/gpu/run"], capture_output=True, text=True, timeout=100,
                              env={**os.environ, "GPU_TORCH": f"{self.folder}/torch_of_python",
                                   "GPU_PYTHON": sys.executable, "OUT": f"{self.folder}/out"})

    def test_ends_well_where_all_bytes_are_equal(self):
        status, table, facts = self.run_all()
        self.assertEqual(status, 0, table)
        for model in ("digits", "many", "char_lm", "mnist_parallel"):
            self.assertRegex(table, rf"  {model} +workers [123, ]+ equal, ")
        self.assertIn("commit: abc", table)
        self.assertIn("  0 of 2  none", table)
        self.assertIn("0.50 × the time of four workers", table)
        self.assertEqual(len([f for f in facts if f["part"] == "exact"]), 2 * 6 + 6 + 2 + 1)

    def test_fails_where_one_worker_has_other_bytes(self):
        status, table, _ = self.run_all(FAKE_FAULT="differs")
        self.assertEqual(status, 1)
        self.assertIn("many                     workers 1, 2, 3  DIFFERENT: workers 1: aaaaaaaaaaaa; "
                      "workers 2: aaaaaaaaaaaa, bbbbbbbbbbbb; workers 3: aaaaaaaaaaaa", table)
        self.assertRegex(table, "digits +workers 1, 2, 3 +equal")

    def test_fails_where_another_seed_gives_the_same_bytes(self):
        status, table, _ = self.run_all(FAKE_FAULT="seedless")
        self.assertEqual(status, 1)
        self.assertIn("digits with another seed: NOT OTHER BYTES", table)

    def test_fails_where_a_model_has_no_bytes(self):
        status, table, _ = self.run_all(FAKE_FAULT="fails")
        self.assertEqual(status, 1)
        self.assertIn("NO RESULT of workers: 2", table)
        self.assertIn("exact_many_2: status 1", table)
        with open(f"{self.folder}/out/log", encoding="utf-8") as file:
            self.assertIn("no such kernel", file.read())

    def test_ends_within_its_limit(self):
        status, table, _ = self.run_all(FAKE_FAULT="hangs", GPU_LIMIT="8")
        self.assertEqual(status, 1)
        self.assertIn("faults: not begun: no time was left", table)
        self.assertIn("exact_digits_1: status 124", table)

    def test_tells_that_a_torch_is_not_one_for_gpus(self):
        done = self.run_for_cuda()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "libtorch_cuda.so is not there: that torch is not one for cuda")

    def test_tells_which_library_is_missing(self):
        library = f"{self.folder}/missing.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            self.skipTest("no compiler")
        self.write("empty.c", "int answer(void) { return 1; }\n")
        self.write("main.c", "int answer(void);\nint main(void) { return answer(); }\n")
        subprocess.run([compiler, "-shared", "-fPIC", f"{self.folder}/empty.c", "-o", library], check=True)
        subprocess.run([compiler, f"{self.folder}/main.c", library, "-o", f"{self.folder}/bin/char_lm"], check=True)
        os.remove(library)
        done = self.run_for_cuda()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"do not start here; ldd says\nchar_lm: .*missing\.so.* not found")


if __name__ == "__main__":
    unittest.main()
