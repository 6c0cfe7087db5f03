"""How far a run is, and how long it may still take: one line on a terminal, else a line now and then."""

import shutil
import sys
import time

LINE_EVERY = 30.0  # seconds, where lines stay
TERMINAL_EVERY = 0.5


class Progress:
    """`left`: {question: cells to measure}; `typical`: {question: seconds of a cell}, of which only the
    proportions matter once something is measured."""

    def __init__(self, left, typical, done=(), stream=sys.stderr, clock=time.monotonic):
        self._left = dict(left)
        self._typical = typical
        self._done = []  # question, seconds
        self._stream = stream
        self._clock = clock
        self._in_place = stream.isatty()
        self._shown_at = None
        self._is_shown = False
        self._now = None  # question, cell, since when
        self._done.extend(done)

    def begin(self, question, cell):
        self._now = (question, cell, self._clock())
        self.tick()

    def tick(self):
        """Shows how far it is, if it is time to."""
        now = self._clock()
        every = TERMINAL_EVERY if self._in_place else LINE_EVERY
        if self._now is None or (self._shown_at is not None and now - self._shown_at < every):
            return
        self._shown_at = now
        line = self.line()
        if self._in_place:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + line[:width])
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
        self._is_shown = True

    def done(self, question, seconds):
        self._left[question] -= 1
        self._done.append((question, seconds))
        self._now = None

    def clear(self):
        """Makes room for other lines."""
        if self._in_place and self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._is_shown, self._shown_at = False, None if self._in_place else self._shown_at

    def say(self, text):
        self.clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def line(self):
        question, cell, _ = self._now
        left = sum(self._left.values())
        return (f"[{time.strftime('%H:%M:%S')}] {len(self._done)} of {len(self._done) + left} cells done, {left} left, "
                f"{duration(self.seconds_left())}; {question}: {cell}")

    def seconds_left(self):
        """None until something is measured."""
        if not self._done:
            return None
        scale = sum(s for _, s in self._done) / sum(self._typical[q] for q, _ in self._done)
        total = current = 0.0
        for question, left in self._left.items():
            own = [s for q, s in self._done if q == question]
            each = sum(own) / len(own) if own else scale * self._typical[question]
            total += left * each
            if self._now and self._now[0] == question:
                current = min(each, self._clock() - self._now[2])
        return total - current


def duration(seconds):
    if seconds is None:
        return "time to go not known yet"
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute to go"
    return f"about {minutes // 60} h {minutes % 60} min to go" if minutes >= 60 else f"about {minutes} min to go"
