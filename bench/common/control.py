"""The contestant's side of the driver's socket: control.h for contestants written in Python."""

import json
import socket
import time


class Control:
    def __init__(self, path, rank):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")
        self.send(rank)

    def commands(self):
        """The words of each line, until the driver hangs up."""
        for line in self._lines:
            yield line.split()

    def send(self, value):
        self._socket.sendall((json.dumps(value) + "\n").encode())


def measure(iterations, call):
    """Nanoseconds of each of `iterations` calls, back to back."""
    nanoseconds = []
    last = time.perf_counter_ns()
    for _ in range(iterations):
        call()
        now = time.perf_counter_ns()
        nanoseconds.append(now - last)
        last = now
    return nanoseconds
