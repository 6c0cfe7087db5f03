"""What others take of the processors while we measure."""

import contextlib
import os

LIMIT = 0.1  # a larger share disturbs
SHORTEST = 1.0  # seconds: the kernel counts in hundredths, so that shorter looks say little


class Usage:
    """Seconds since some start: `all` of the processors that we may use, busy or not; `busy` for
    programs; of these `own`, for this process and its descendants."""

    def __init__(self, all_, busy, own):
        self.all, self.busy, self.own = all_, busy, own


def processor_seconds():
    """A Usage, or None where the kernel does not tell.

    Interrupts do not count: those that our contestants' sockets cause cannot be told from those of others.
    What a hypervisor took away (steal) counts as busy.
    """
    tick = os.sysconf("SC_CLK_TCK")
    ours = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    every = busy = 0
    try:
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, *words = line.split()
                if name in ours:
                    user, nice, system, idle, wait, irq, soft, steal = (int(word) for word in words[:8])
                    every += user + nice + system + idle + wait + irq + soft + steal
                    busy += user + nice + system + steal
    except (OSError, ValueError):
        return None
    return Usage(every / tick, busy / tick, sum(tree_ticks(os.getpid())) / tick) if every else None


def tree_ticks(root):
    """Ticks that each living process of the tree has used, with what it has waited for."""
    children, used = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended since.
        children.setdefault(int(fields[1]), []).append(int(name))
        used[int(name)] = sum(int(field) for field in fields[11:15])
    waiting = [root]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        yield used.get(process, 0)


class Watch:
    """Collects others' shares of the processors over the rounds of a cell."""

    def __init__(self, read=None, on_round=lambda: None):
        self._read = read or processor_seconds
        self._on_round = on_round
        self._before = None
        self._looks = []  # seconds of others, seconds of all
        self._open = [0.0, 0.0]
        self._blind = False
        self._rounds = 0  # since the last take()
        self._processors = len(os.sched_getaffinity(0))

    def begin(self):
        self._before = self._read()

    def end(self):
        after = self._read()
        self._rounds += 1
        if self._before is None or after is None:
            self._blind = True
        else:
            self._open[0] += max(0.0, (after.busy - self._before.busy) - (after.own - self._before.own))
            self._open[1] += after.all - self._before.all
        if self._open[1] >= SHORTEST * self._processors:
            self._close()
        self._on_round()

    @contextlib.contextmanager
    def round(self):
        self.begin()
        yield
        self.end()

    def _close(self):
        self._looks.append(tuple(self._open))
        self._open = [0.0, 0.0]

    def take(self):
        """What there was since the last call: shares of all processors, on average and in the worst look; None
        where a look could not be had."""
        if self._looks:
            others, every = self._looks.pop()
            self._looks.append((others + self._open[0], every + self._open[1]))
        elif self._rounds > 0:  # of less than a hundredth of a second it may say nothing
            self._looks.append(tuple(self._open))
        looks, blind = self._looks, self._blind
        self._looks, self._open, self._blind, self._rounds = [], [0.0, 0.0], False, 0
        if blind:
            return {"looks": len(looks), "mean": None, "worst": None}
        return {"looks": len(looks), "mean": sum(o for o, _ in looks) / max(1e-9, sum(e for _, e in looks)),
                "worst": max((others / every for others, every in looks if every > 0), default=0.0)}


def disturbed(others):
    return others["worst"] is not None and others["worst"] > LIMIT
