#!/usr/bin/env python3
"""How soon the workers of a job know who is lost: two hosts, which are network namespaces of this machine, with two
workers each of an example in the midst of its training, over Gloo. script/exactness --liveness builds it and runs
this, as root.

    liveness.py [--build DIR] [--tries N] [--only EVENT …]

Of each event the time until each worker that lives has said so: minimum, median, 99th percentile, maximum, how many of
them named a worker of the host that was lost, and the bound. What only pauses has to lose nobody. The exit status is 1
where a bound is missed, a wrong worker named or one lost for no reason, 77 where hosts cannot be made.
"""

import argparse
import os
import random
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
SKIPPED = 77
HOSTS, EACH = 2, 2
WORKERS = HOSTS * EACH
START = 120  # seconds until a job trains
LONGEST = 20  # seconds from an event to what is waited for
SOON, SILENT = 0.2, 2.0  # seconds: the bounds of a death that the system tells of, and of silence
PROGRAM = ("char_lm", "--text", os.path.join(PROJECT, "LICENSE"), "--seed", "5", "--rows", "3", "--length", "12",
           "--hidden", "20", "--sample", "0", "--shards", "6", "--steps", "1000000")
LOST = re.compile(r"ranks? ([0-9 ]+) ended|ended.*?\(rank ([0-9]+)|the host of rank ([0-9]+)|rank ([0-9]+) has ended")


class NoHosts(Exception):
    """Hosts cannot be made here; the text is the reason."""


class Network:
    """The hosts, each held by a process whose number, as seen from here, is `holders[host]`."""

    def __init__(self):
        self._folder = tempfile.mkdtemp()
        path = os.path.join(self._folder, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(1)
            self._process = subprocess.Popen(
                [os.path.join(PROJECT, "script", "hosts"), "--hosts", str(HOSTS), sys.executable,
                 os.path.abspath(__file__), "--hold", path],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.holders, self._lines = [0] * HOSTS, []
            while len(self._lines) < HOSTS:
                try:
                    line, _ = listener.accept()
                except TimeoutError:
                    if self._process.poll() is not None:
                        raise NoHosts(self._process.stdout.read().strip()) from None
                    continue
                credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                self.holders[int(line.recv(16))] = struct.unpack("3i", credentials)[0]
                self._lines.append(line)

    def on(self, host, *command):
        return ["nsenter", "--target", str(self.holders[host]), "--net", "--uts", "--", *command]

    def do(self, host, command):
        subprocess.run(self.on(host, *command.split()), check=True)

    def close(self):
        for line in self._lines:
            line.close()
        self._process.wait()
        shutil.rmtree(self._folder)


class Worker:
    """A process of the example; its lines are read as they come."""

    def __init__(self, command, environment):
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True, errors="replace")
        self.lost = None  # when it said so, and whom it named
        self.last = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._process.stdout:
            now = time.monotonic()
            self.last = line.strip()
            if self.lost is None and LOST.search(line) and "has started" not in line:
                self.lost = now, {int(r) for group in LOST.findall(line) for part in group for r in part.split()}

    def signal(self, number):
        if self._process.poll() is None:
            self._process.send_signal(number)

    def has_ended(self):
        return self._process.poll() is not None

    def close(self):
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._thread.join()


class Job:
    ports = iter(range(29600, 29600 + 30000))

    def __init__(self, network, program):
        self.network = network
        common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(EACH),
                  "TUTTI_HUB": f"10.77.0.1:{next(self.ports)}", "TUTTI_TOKEN": "of-these-tries", "TUTTI_LINK": "auto"}
        self._folder = tempfile.mkdtemp()
        self._log = os.path.join(self._folder, "log")
        self.workers = []
        for rank in range(WORKERS):
            environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank % EACH),
                           "GROUP_RANK": str(rank // EACH)}
            self.workers.append(Worker(network.on(rank // EACH, *program, "--log", self._log), environment))
        until = time.monotonic() + START
        while self.step() < 3:
            if time.monotonic() > until or any(worker.has_ended() for worker in self.workers):
                self.close()
                raise RuntimeError("the job did not begin: " + "; ".join(worker.last for worker in self.workers))
            time.sleep(0.02)

    def step(self):
        """How many steps rank 0 has logged."""
        try:
            with open(self._log, "rb") as log:
                return sum(1 for _ in log)
        except FileNotFoundError:
            return 0

    def of(self, host):
        return self.workers[host * EACH:(host + 1) * EACH]

    def close(self):
        for worker in self.workers:
            worker.close()
        shutil.rmtree(self._folder)


def stop(job, number):
    for worker in job.of(1):
        worker.signal(number)


# Event: what happens, the workers that live, whom each may name, the bound. Without the hub a host is on its own.
EVENTS = {
    "a worker is killed": (lambda job: job.workers[3].signal(signal.SIGKILL), (0, 1, 2), {0: {3}, 1: {3}}, SOON),
    "the first worker of a host is killed": (lambda job: job.workers[2].signal(signal.SIGKILL), (0, 1, 3),
                                             {0: {2, 3}, 1: {0, 1, 2}}, SOON),
    "rank 0 is killed": (lambda job: job.workers[0].signal(signal.SIGKILL), (1, 2, 3),
                         {0: {0, 2, 3}, 1: {0, 1}}, SOON),
    "all workers of a host are stopped": (lambda job: stop(job, signal.SIGSTOP), (0, 1), {0: {2, 3}}, SILENT),
    "the cable of a host is cut": (lambda job: job.network.do(1, "ip link set eth0 down"), (0, 1, 2, 3),
                                   {0: {2, 3}, 1: {0, 1}}, SILENT),
}


def pause(job):
    stop(job, signal.SIGSTOP)
    time.sleep(1)
    stop(job, signal.SIGCONT)


def narrow(job):
    job.network.do(1, "tc qdisc replace dev eth0 root tbf rate 1mbit burst 16kb latency 300ms")
    time.sleep(2)
    job.network.do(1, "tc qdisc replace dev eth0 root tbf rate 1gbit burst 1mb latency 50ms")


# What only pauses.
PAUSES = {"all workers of a host are stopped for 1 s": pause, "a host sends 1 Mbit/s for 2 s": narrow}


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def row(what, *cells):
    print(what.ljust(44) + "".join(str(cell).rjust(9) for cell in cells), flush=True)


def measure(network, program, what, tries, draw):
    event, living, may_name, bound = EVENTS[what]
    times, right, silent = [], 0, []
    for _ in range(tries):
        job = Job(network, program)
        try:
            time.sleep(draw.uniform(0, 0.3))
            begin = time.monotonic()
            event(job)
            while time.monotonic() < begin + LONGEST and any(job.workers[r].lost is None for r in living):
                time.sleep(0.01)
            for rank in living:
                if job.workers[rank].lost is None:
                    silent.append(f"rank {rank} said nothing of it, and "
                                  f"{'has ended' if job.workers[rank].has_ended() else 'lives'}: {job.workers[rank].last}")
                    continue
                at, named = job.workers[rank].lost
                times.append(at - begin)
                if named & may_name[rank // EACH]:
                    right += 1
                else:
                    silent.append(f"rank {rank} named {named}: {job.workers[rank].last}")
        finally:
            stop(job, signal.SIGCONT)
            job.close()
            if "cable" in what:
                network.do(1, "ip link set eth0 up")
    ms = [f"{1000 * value:.0f}" for value in (min(times), statistics.median(times), percentile(times, 0.99),
                                              max(times))] if times else ["-"] * 4
    good = bool(times) and not silent and max(times) <= bound
    row(what, tries, *ms, f"{right}/{tries * len(living)}", f"{1000 * bound:.0f}", "yes" if good else "NO")
    for text in silent[:5]:
        print("  " + text)
    return good


def measure_pause(network, program, what, tries):
    lost, job = [], None
    for _ in range(tries):
        job = job or Job(network, program)
        PAUSES[what](job)
        step, until = job.step(), time.monotonic() + LONGEST
        while job.step() < step + 2 and time.monotonic() < until and not any(w.has_ended() for w in job.workers):
            time.sleep(0.01)
        if job.step() < step + 2:
            lost.append("; ".join(worker.last for worker in job.workers))
            job.close()
            job = None
    if job:
        job.close()
    row(what, tries, *["-"] * 4, f"{len(lost)} lost", "0", "NO" if lost else "yes")
    for text in lost[:5]:
        print("  " + text)
    return not lost


def hold(path):
    """On each host: until the other side hangs up."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.send(os.environ["HOST_RANK"].encode())
        line.recv(1)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--liveness", action="store_true", help=argparse.SUPPRESS)  # script/exactness passes it on
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--build", default=os.path.join(PROJECT, "build"))
    parser.add_argument("--tries", type=int, default=100, help="of each event; default 100")
    parser.add_argument("--only", nargs="+", choices=[*EVENTS, *PAUSES], default=[*EVENTS, *PAUSES], metavar="EVENT",
                        help="default: all")
    arguments = parser.parse_args(words)
    if arguments.hold:
        hold(arguments.hold)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers and hosts end too
    program = [os.path.join(os.path.abspath(arguments.build), "bin", PROGRAM[0]), *PROGRAM[1:]]
    try:
        network = Network()
    except NoHosts as reason:
        print(reason)
        sys.exit(SKIPPED)
    draw, good = random.Random(1), True
    try:
        row("ms until workers that live say who is lost", "tries", "min", "median", "99 %", "max", "right", "bound", "good")
        for what in arguments.only:
            good = (measure(network, program, what, arguments.tries, draw) if what in EVENTS else
                    measure_pause(network, program, what, arguments.tries)) and good
    finally:
        network.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
