"""The question of several hosts: where they cannot be made, what is derived of figures, what is held against aims."""

import os
import subprocess
import unittest

import support
from hosts import aims, hosts, network, rivals
from hosts.rivals import DDP, MPIS, NO_SYNC, TRAINER

MS = 1_000_000


class FakeTurns:
    probes = [100e6, 120e6, 110e6]

    def __init__(self, milliseconds, sent):
        self.rounds = {column: [[ms * MS, ms * MS]] * 3 for column, ms in milliseconds.items()}
        self.sent = {column: [per_host] * 3 for column, per_host in sent.items()}


def derived(model="mlp", methods=None, **changes):
    milliseconds = {TRAINER: 400, DDP: 600, NO_SYNC: 100, **changes.get("milliseconds", {})}
    sent = {TRAINER: [33e6, 22e6], DDP: [33e6, 33e6], NO_SYNC: [0, 0], **changes.get("sent", {})}
    return hosts.derive(FakeTurns(milliseconds, sent), 2, model, methods or {})


class Layouts(unittest.TestCase):
    def test_are_hosts_workers_and_rate(self):
        self.assertEqual(hosts.layout_of("2x1"), (2, 1, "1gbit"))
        self.assertEqual(hosts.layout_of("4x2@10gbit"), (4, 2, "10gbit"))
        for wrong in ("1x2", "2x0", "2", "2x1@5gbit", "2x1gbit", "x", ""):
            self.assertIsNone(hosts.layout_of(wrong), wrong)
        for layout in hosts.LAYOUTS:
            self.assertIsNotNone(hosts.layout_of(layout), layout)


class Figures(unittest.TestCase):
    def test_of_a_dense_model_are_held_against_the_wire(self):
        cell = derived()[TRAINER]
        wire = hosts.BYTES["mlp"] / 110e6  # of two hosts each sends the gradients once
        self.assertAlmostEqual(cell["wire_us"], wire * 1e6)
        self.assertAlmostEqual(cell["ratio_to_bound"], 0.4 / wire)
        self.assertAlmostEqual(cell["share_of_probe"], 33e6 / 0.4 / 110e6)
        self.assertEqual((cell["busiest"], cell["ratio_to_no_sync"]), (33e6, 4))
        self.assertAlmostEqual(cell["times_faster_than"][DDP], 1.5)

    def test_are_bound_by_computing_where_that_takes_longer(self):
        cell = derived(milliseconds={NO_SYNC: 390})[TRAINER]
        self.assertAlmostEqual(cell["ratio_to_bound"], 400 / 390)

    def test_of_rows_are_not_held_against_dense_bytes(self):
        columns = derived("bag")
        self.assertIsNone(columns[TRAINER]["ratio_to_bound"])
        self.assertIsNotNone(columns[DDP]["ratio_to_bound"])

    def test_of_each_link_are_held_against_the_wire_too(self):
        column = rivals.link_column("gloo")
        turns = FakeTurns({TRAINER: 400, column: 300, NO_SYNC: 100}, {TRAINER: [1, 1], column: [1, 1], NO_SYNC: [0, 0]})
        for model, is_bounded in (("mlp", True), ("bag", False)):
            columns = hosts.derive(turns, 2, model, {}, ["gloo"])
            self.assertEqual(columns[column]["ratio_to_bound"] is not None, is_bounded)
        self.assertIsNone(hosts.derive(turns, 2, "mlp", {})[column]["ratio_to_bound"])

    def test_of_averaging_count_whole_periods(self):
        self.assertEqual(hosts.period_of(["--averaging", "diloco:32,int8", "--logical-workers", "2"]), 32)
        self.assertEqual(hosts.period_of(["--codec", "topk:0.01"]), 1)
        self.assertEqual(hosts.period_of(None), 1)


class Aims(unittest.TestCase):
    def verdicts(self, each, columns, model="mlp"):
        return {v["text"]: v["met"] for v in aims.judge(2, each, "1gbit", model, columns)}

    def test_of_two_workers_on_each_host_is_a_factor_over_ddp(self):
        self.assertTrue(self.verdicts(2, derived())["DDP's step ÷ its"])
        self.assertFalse(self.verdicts(2, derived(milliseconds={DDP: 550}))["DDP's step ÷ its"])
        self.assertTrue(self.verdicts(1, derived(milliseconds={DDP: 550}))["DDP's step ÷ its"])

    def test_of_one_worker_on_each_host_is_the_bound(self):
        self.assertNotIn("step ÷ bound", self.verdicts(2, derived()))
        self.assertFalse(self.verdicts(1, derived())["step ÷ bound"])
        self.assertTrue(self.verdicts(1, derived(milliseconds={TRAINER: 310}))["step ÷ bound"])

    def test_of_each_mpi_is_not_to_be_slower(self):
        [one, *_] = MPIS
        columns = derived(milliseconds={one: 390}, sent={one: [33e6, 33e6]})
        self.assertFalse(self.verdicts(1, columns)[f"{one}'s step ÷ its"])

    def test_of_rows_is_a_factor_over_dense(self):
        fast = derived("bag", milliseconds={TRAINER: 29})
        self.assertEqual(self.verdicts(1, fast, "bag"), {"DDP's dense step ÷ its": True})
        self.assertEqual(self.verdicts(1, derived("bag"), "bag"), {"DDP's dense step ÷ its": False})

    def test_of_codecs_and_averaging_are_bytes_and_speed(self):
        columns = derived(methods={"a": "int8", "b": "diloco:32,int8"}, milliseconds={"a": 100, "b": 104},
                          sent={"a": [8e6, 8e6], "b": [3e5, 3e5]})
        verdicts = self.verdicts(1, columns)
        self.assertTrue(verdicts["× fewer bytes"])
        self.assertTrue(verdicts["× fewer bytes than DDP"])
        self.assertTrue(verdicts["speed ÷ no sync's"])
        columns = derived(methods={"a": "int8", "b": "diloco:32,int8"}, milliseconds={"a": 100, "b": 110},
                          sent={"a": [9e6, 9e6], "b": [4e5, 4e5]})
        verdicts = self.verdicts(1, columns)
        self.assertFalse(any(verdicts[text] for text in ("× fewer bytes", "× fewer bytes than DDP",
                                                         "speed ÷ no sync's")))
        columns = derived(methods={"b": "diloco:32"}, milliseconds={"b": 110}, sent={"b": [4e5, 4e5]})
        self.assertNotIn("× fewer bytes than DDP", self.verdicts(1, columns))


class Hosts(support.Folder):
    def add_script(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(file.name, 0o755)
        return file.name

    def test_that_cannot_be_made_are_missing_with_the_reason(self):
        script = self.add_script("hosts", "echo 'hosts: skipped: only root can'\nexit 77\n")
        with self.assertRaisesRegex(network.NoHosts, "^only root can$"):
            network.Network(2, "1gbit", "probe", script)

    def test_are_entered_by_their_address_whatever_options_a_launcher_gives(self):
        self.add_script("nsenter", 'echo "$@"\n')
        enter = os.path.join(support.BENCH, "hosts", "enter.sh")
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "TUTTI_BENCH_HOSTS": "10.77.0.1=11 10.77.0.2=12"}

        def call(*words):
            return subprocess.run([enter, *words], env=environment, capture_output=True, text=True, check=False)

        self.assertEqual(call("-x", "-q", "10.77.0.2", "proxy", "--port 1").stdout,
                         "--target 12 --net --uts -- sh -c proxy --port 1\n")
        self.assertEqual(call("10.77.0.3", "proxy").returncode, 1)
        self.assertIn("no host 10.77.0.3", call("10.77.0.3", "proxy").stderr)

    def test_have_one_launcher_each_for_all_workers(self):
        class OneNetwork:
            hosts = 2

            def on(self, host, command):
                return [f"on {host}", *command]

        commands = rivals.tutti(rivals.Place(None, OneNetwork(), 3), ["program"], "TUTTI_LINK=tcp")
        self.assertEqual([command[0] for command in commands], ["on 0", "on 1"])
        for first, command in zip((0, 3), commands):
            self.assertIn("TUTTI_LINK=tcp", command[:command.index("sh")])
            shell = command[command.index("sh"):command.index("sh") + 2]
            script = f"first={first} LOCAL_WORLD_SIZE=3 world=6; {rivals.WORKERS}"
            done = subprocess.run([*shell, script, "sh", "sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE"],
                                  capture_output=True, text=True, check=True)
            self.assertEqual(sorted(done.stdout.splitlines()), [f"{first + local} {local} 6" for local in range(3)])


if __name__ == "__main__":
    unittest.main()
