"""The matrix of hosts tells equal sums from others, refusals from failures, and why there are no hosts."""

import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import hosts

ONE, OTHER = "ab" * 32, "cd" * 32
REFUSAL = "char_lm: on several hosts: there this version of Tutti has no codecs (docs/clusters.md)"


class FakeMachine:
    def __init__(self, answers):
        self._answers = answers
        self.environments = []

    def run(self, layout, words, environment):
        self.environments.append(environment)
        return self._answers[words[0]][layout]


def ran(digest):
    return 0, f"host1: step 8 loss 3.1 parameters sha256 {digest}\n"


class Matrix(unittest.TestCase):
    def compare(self, *answers):
        """Whether all is equal, and the lines, of one method on as many layouts as there are answers."""
        places = hosts.places_of(list(hosts.LAYOUTS)[:len(answers)], [], {"A": "b"})
        machine = FakeMachine({"program": {layout: answer for (layout, _), answer in zip(places.values(), answers)}})
        lines = []
        equal = hosts.compare(machine, {"dense": ("program",)}, places, lines.append)
        self.assertEqual(machine.environments, [{"A": "b"}] * len(answers))
        return equal, lines

    def test_of_equal_sums_is_good(self):
        equal, lines = self.compare(ran(ONE), ran(ONE), ran(ONE))
        self.assertTrue(equal)
        self.assertTrue(lines[-1].endswith("yes"), lines)

    def test_tells_a_sum_that_differs(self):
        equal, lines = self.compare(ran(ONE), ran(ONE), ran(OTHER))
        self.assertFalse(equal)
        self.assertIn("NO: they differ", lines[-1])

    def test_tells_hosts_of_one_run_that_differ(self):
        both = ran(ONE)[1] + ran(OTHER)[1]
        self.assertFalse(self.compare(ran(ONE), (0, both))[0])

    def test_has_a_column_of_several_hosts_for_each_link(self):
        self.assertEqual(hosts.places_of(["1x4", "2x2"], ["gloo", "tcp"], {"A": "b"}),
                         {"1x4": ((4,), {"A": "b"}),
                          "2x2 gloo": ((2, 2), {"A": "b", "TUTTI_LINK": "gloo"}),
                          "2x2 tcp": ((2, 2), {"A": "b", "TUTTI_LINK": "tcp"})})

    def test_shows_what_is_refused_and_its_sentence(self):
        equal, lines = self.compare(ran(ONE), (1, f"host2: {REFUSAL}\n"), (1, f"host1: {REFUSAL}\n"))
        self.assertTrue(equal)
        self.assertEqual(lines[1].split()[1:], [ONE[:12], "refused", "refused", "one", "alone"])
        self.assertEqual(lines[2], f"dense on 2x2, dense on 4x1: {REFUSAL}")

    def test_fails_with_a_program_that_does(self):
        equal, lines = self.compare(ran(ONE), ran(ONE), (1, "host3: rank 2 ended before reaching"))
        self.assertFalse(equal)
        self.assertIn("FAILED", lines[1])
        self.assertIn("rank 2 ended", lines[2])

    def test_fails_with_a_sum_of_a_run_that_failed_after_it(self):
        self.assertFalse(self.compare(ran(ONE), (1, ran(ONE)[1]))[0])

    def test_fails_where_nothing_was_refused_in_words(self):
        self.assertFalse(self.compare(ran(ONE), (0, "no sum"))[0])


class Hosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "bin"))
        self.add("bin/tutti", f"echo parameters sha256 {ONE}\n")
        self.add("bin/char_lm", f'[ "$GROUP_RANK$LOCAL_RANK" != "$BAD" ] || exit 1\n'
                 f'echo "$RANK of $WORLD_SIZE: $LOCAL_RANK of $LOCAL_WORLD_SIZE on $GROUP_RANK at $TUTTI_HUB" >&2\n'
                 f"[ $RANK != 0 ] || echo parameters sha256 {ONE}\n")

    def add(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return path

    def call(self, script, *options):
        done = subprocess.run([sys.executable, os.path.join(HERE, "hosts.py"), "--build", self.folder, "--script", script,
                               "--only", "dense", *options], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def loopback(self):
        """Hosts that are none: script/hosts in all but namespaces."""
        return self.add("hosts", 'count=$2; shift 2; k=0\nwhile [ $k -lt $count ]; do\n'
                        '  HOST_RANK=$k HOST_COUNT=$count "$@" & all="$all $!"; k=$((k + 1))\ndone\n'
                        "for one in $all; do wait $one || status=1; done\nexit ${status:-0}\n")

    def test_that_cannot_be_made_are_skipped_with_the_reason(self):
        script = self.add("hosts", "echo 'hosts: skipped: only root can'\nexit 77\n")
        status, output = self.call(script)
        self.assertEqual(status, 77)
        self.assertIn("hosts: skipped: only root can", output)

    def test_start_their_workers_as_torchrun_does(self):
        machine = hosts.Machine(self.folder, self.loopback())
        status, output = machine.run((2, 1, 1), ("char_lm",), {})
        self.assertEqual(status, 0, output)
        self.assertEqual(sorted(line for line in output.splitlines() if " of 4: " in line),
                         ["0 of 4: 0 of 2 on 0 at 10.77.0.1:29600", "1 of 4: 1 of 2 on 0 at 10.77.0.1:29600",
                          "2 of 4: 0 of 1 on 1 at 10.77.0.1:29600", "3 of 4: 0 of 1 on 2 at 10.77.0.1:29600"])

    def test_start_their_workers_by_mpirun_where_messages_go_over_mpi(self):
        self.add("bin/mpirun", 'echo "$@"\necho "$TUTTI_BENCH_HOSTS"\n')
        machine = hosts.Machine(self.folder, self.loopback())
        path = os.path.join(self.folder, "bin") + os.pathsep + os.environ["PATH"]
        status, output = machine.run((2, 1, 1), ("char_lm", "--letters"), {"TUTTI_LINK": "mpi", "PATH": path})
        self.assertEqual(status, 0, output)
        self.assertIn("--host 10.77.0.1:2,10.77.0.2:1,10.77.0.3:1 -n 4 ", output)
        self.assertIn("-x TUTTI_LINK", output)
        self.assertTrue(output.splitlines()[0].endswith("/char_lm --letters"), output)
        self.assertRegex(output.splitlines()[1], r"10\.77\.0\.1=\d+ 10\.77\.0\.2=\d+ 10\.77\.0\.3=\d+$")

    def test_fail_with_any_worker(self):
        self.assertEqual(self.call(self.loopback())[0], 0)
        status, output = self.call(self.loopback(), "--with", "BAD=10")
        self.assertEqual(status, 1)
        self.assertIn("FAILED", output)


if __name__ == "__main__":
    unittest.main()
