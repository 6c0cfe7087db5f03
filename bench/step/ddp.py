"""PyTorch's DistributedDataParallel with its own best settings, and Python without it.

    ddp.py SOCKET MODEL OPTIMIZER RANK SIZE STORE (ddp | ddp:BUCKET_MB | barrier)
"""

import ctypes
import gc
import mmap
import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist

from common.control import Control, measure
from step.models import make_optimizer, make_task


def held_bytes():
    """See worker.cpp."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    raise SystemExit("no Pss in /proc/self/smaps_rollup")


class Barrier:
    """Counters in a shared page: one writer each, the others spin."""

    def __init__(self, path, rank, size):
        with open(path, "ab") as file:
            file.truncate(4096)
        with open(path, "r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
        self._rank, self._size = rank, size

    def wait(self):
        mine = self._counters[self._rank] = self._counters[self._rank] + 1
        for rank in range(self._size):
            while self._counters[rank] < mine:
                os.sched_yield()


def make_wrap(way, store, rank, size):
    """wrap(model): the model to call, and what is to be called after each backward."""
    if way == "barrier":
        barrier = Barrier(store + ".barrier", rank, size)
        return lambda model: (model, barrier.wait)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    bucket = {"bucket_cap_mb": float(way[4:])} if way.startswith("ddp:") else {}
    return lambda model: (torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True, **bucket), lambda: None)


def make_training(task, wrap, optimizer_name):
    """A whole step, and its first half: see worker.h."""
    model, x, loss = task
    model, after_backward = wrap(model)
    optimizer = make_optimizer(optimizer_name, model.parameters())

    def gradients():
        loss(model(x)).backward()
        after_backward()

    def step():
        gradients()
        optimizer.step()
        optimizer.zero_grad()

    return step, gradients


def first_use(model_name, rank, wrap, optimizer_name):
    """See worker.cpp."""
    model, x, loss = make_task(model_name, rank)
    loss(model(x)).backward()
    del model, x, loss
    tiny = (torch.nn.Linear(1, 1), torch.ones(1, 1), torch.sum)
    make_training(tiny, wrap, optimizer_name)[0]()
    gc.collect()


def main(path, model_name, optimizer_name, rank, size, store, way):
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    control = Control(path, rank)
    wrap = make_wrap(way, store, rank, size)
    first_use(model_name, rank, wrap, optimizer_name)
    training = None
    for what, *steps in control.commands():
        if what == "held":
            control.send([held_bytes()])
            continue
        training = training or make_training(make_task(model_name, rank), wrap, optimizer_name)
        step, gradients = training
        if what == "steps":
            control.send(measure(int(steps[0]), step))
        else:
            gradients()
            control.send([])
    if way != "barrier":
        dist.destroy_process_group()


main(*sys.argv[1:])
