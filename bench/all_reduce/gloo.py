"""Gloo's all-reduce through torch.distributed: used where Gloo's headers are not installed."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist

from common.control import Control, measure


def main(path, rank, size, store):
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    control = Control(path, rank)
    memory = torch.zeros(1)
    for _, count, iterations, touch in control.commands():
        count, iterations, touch = int(count), int(iterations), touch == "1"
        if memory.numel() < count:
            memory = torch.zeros(count)
        part = memory[:count]
        part.copy_(torch.arange(count) % 7 + rank + 1)
        dist.all_reduce(part)
        expected = (torch.arange(count) % 7 * size + size * (size + 1) // 2).float()
        if not torch.equal(part, expected):
            sys.exit("wrong sum")
        part.zero_()

        def once():
            if touch:
                part.zero_()
            dist.all_reduce(part)

        measure(1 + iterations // 10, once)
        times = measure(iterations, once)
        control.send(times if rank == 0 else None)
    dist.destroy_process_group()


main(*sys.argv[1:])
