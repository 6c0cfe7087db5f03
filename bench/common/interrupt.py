"""Signals that end a run: noted when they come, obeyed where nothing is half done.

An exception out of a signal handler could hit the driver between the start of a process and the line
that remembers it, or amid its clearing up. So the handler notes the signal, and who waits looks.
"""

import os
import signal

_noted = []
_pipe = []


class Interrupted(BaseException):
    """The run is to end by the signal `number`."""

    def __init__(self, number):
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


def note_signals():
    """From here on SIGINT and SIGTERM wait for the next check()."""
    _pipe[:] = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda which, _: _noted.append(which))


def check():
    if _noted:
        raise Interrupted(_noted[0])


def descriptors():
    """Readable once a signal has come: for a selector that waits for something else."""
    return _pipe[:1]


def end_by(number):
    """Ends this process as the signal would have."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
