"""Contestants of a benchmark: groups of processes that sleep until it is their turn."""

import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

from common import interrupt

START_SECONDS = 120
ANSWER_SECONDS = 300


class Failed(Exception):
    """A contestant did not start or did not answer; the text ends with what it printed."""


def separate_cores():
    """One hardware thread of each core that we may use."""
    allowed, cores = os.sched_getaffinity(0), {}
    for cpu in sorted(allowed):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
                      encoding="ascii") as file:
                cores.setdefault(file.read(), cpu)
        except OSError:
            cores[cpu] = cpu
    return list(cores.values())


def process_of(connection):
    """The one at the other end of a unix socket."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", peer)[0]


class Contestant:
    """`size` ranks of so many threads, started by `commands` (one process each, or one launcher for all).

    The words {socket} and {store} in a command are replaced by paths of this contestant. Unless it is `pinned`, its
    threads run on any processor.
    """

    def __init__(self, name, commands, size, environment=None, threads=1, pinned=True):
        self.name = name
        self.size = size
        self.threads = threads
        self.pinned = pinned
        self._folder = tempfile.mkdtemp(prefix="bench-")
        self._processes = []
        self._ranks = {}
        self._output = open(os.path.join(self._folder, "output"), "w+", encoding="utf-8",
                            errors="replace")
        try:
            self._start(commands, environment or {})
        except BaseException:
            self.close()
            raise

    def _start(self, commands, environment):
        path = os.path.join(self._folder, "socket")
        paths = {"{socket}": path, "{store}": os.path.join(self._folder, "store")}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(self.size)
            listener.settimeout(0.2)
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
            for command in commands:
                # A process group, not a session: Linux shares processors out by session (autogroup), and
                # who brings two ranks in one launcher would get half of what two commands get.
                self._processes.append(subprocess.Popen(
                    [paths.get(word, word) for word in command], env=variables, preexec_fn=os.setpgrp,
                    stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output))
            self._accept_all(listener)

    def _accept_all(self, listener):
        limit = time.monotonic() + START_SECONDS
        while len(self._ranks) < self.size:
            interrupt.check()
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                if time.monotonic() > limit:
                    raise self._failure(f"did not start within {START_SECONDS} s")
                if any(p.poll() is not None for p in self._processes):
                    raise self._failure("ended before it was asked anything")
                continue
            connection.settimeout(START_SECONDS)
            reader = connection.makefile("r")
            rank = json.loads(reader.readline())
            self._pin(connection, rank)
            self._ranks[rank] = (connection, reader)

    def _pin(self, connection, rank):
        """Gives the rank's main thread a core of its own, or one for each of its threads, where there are
        enough. Threads that it has started already go where they like."""
        cores = separate_cores()
        if self.pinned and self.size * self.threads <= len(cores):
            own = cores[rank * self.threads:(rank + 1) * self.threads]
            os.sched_setaffinity(process_of(connection), own)

    def process(self, rank):
        """Its number, as this process sees it."""
        return process_of(self._ranks[rank][0])

    def ask(self, line):
        """Sends a line to all ranks and returns their answers in rank order."""
        waiting = selectors.DefaultSelector()
        for rank in range(self.size):
            connection, _ = self._ranks[rank]
            try:
                connection.sendall((line + "\n").encode())
            except OSError:
                raise self._failure(f"rank {rank} is gone before: {line}") from None
            waiting.register(connection, selectors.EVENT_READ, rank)
        for descriptor in interrupt.descriptors():
            waiting.register(descriptor, selectors.EVENT_READ)
        answers, left = [None] * self.size, self.size
        limit = time.monotonic() + ANSWER_SECONDS
        while left:
            ready = waiting.select(max(0, limit - time.monotonic()))
            interrupt.check()
            if not ready:
                raise self._failure(f"no answer within {ANSWER_SECONDS} s to: {line}")
            for key in (key for key, _ in ready if key.data is not None):
                try:
                    answer = self._ranks[key.data][1].readline()
                except OSError:
                    answer = ""
                if not answer:
                    raise self._failure(f"rank {key.data} ended during: {line}")
                answers[key.data] = json.loads(answer)
                waiting.unregister(key.fileobj)
                left -= 1
        return answers

    def _failure(self, what):
        time.sleep(0.5)
        self._output.seek(0)
        tail = self._output.read()[-2000:].strip()
        return Failed(f"{self.name}: {what}\n{tail}")

    def close(self):
        """Hangs up, which ends the ranks, and makes sure that none is left."""
        for connection, reader in self._ranks.values():
            reader.close()
            connection.close()
        for sign, patience in ((None, 10), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if self._ended(sign, patience):
                break
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ended(self, sign, patience):
        limit = time.monotonic() + (patience if self._ranks or sign else 0)
        for process in self._processes:
            if sign is not None and process.poll() is None:
                os.killpg(process.pid, sign)
        for process in self._processes:
            try:
                process.wait(max(0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True
