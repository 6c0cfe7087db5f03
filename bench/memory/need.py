"""How many copies of the parameters each way of training promises to hold, and what the machine has."""

import os

from step.rivals import TRAINER

# A process with libtorch, rounded up, Python included.
PROCESS_BYTES = 300 * 10**6
MOST_OF_MACHINE = 0.6
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def promised(column, workers, shards):
    """Parameters, Adam's two moments and gradients, in copies of the parameters, over all workers."""
    if column.startswith(TRAINER):
        return 3 + workers * nodes(-(-shards // workers))
    return workers * (1 + 2 + 1)


def nodes(shards):
    """Most nodes of the tree that a worker with so many shards holds: docs/trainer.md."""
    return 2 * (shards.bit_length() - 1) + 1


def needed_bytes(copies, workers, parameter_bytes):
    """What to expect at most: one more copy per worker for gradients in flight and while starting."""
    return (copies + workers) * parameter_bytes + workers * PROCESS_BYTES


def allowed_bytes():
    """The share of this machine's memory, or of what our control group may take of it, that one
    contestant may need."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return int(MOST_OF_MACHINE * min(limits))
