"""The steps of bench_pipeline in Python: torch.distributed.pipelining over Gloo, and one process without it.

    rival.py SOCKET RANK SIZE STORE (none | gpipe | 1f1b)
"""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from common.control import Control, measure
from common.torch_memory import peak_of

BLOCKS = MICRO_BATCHES = 8
ROWS, LENGTH, WIDTH, HEADS = 2, 64, 256, 8
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.LayerNorm(WIDTH)
        self.second = torch.nn.LayerNorm(WIDTH)
        self.inner = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.inner(self.first(x)).chunk(3, 2))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = x + self.out(seen.transpose(1, 2).flatten(2))
        return y + self.down(torch.nn.functional.gelu(self.up(self.second(y))))


def loss_of(y, _):
    return y.square().mean()


def make_training(way, rank, size, store):
    torch.manual_seed(1)
    blocks = [Block() for _ in range(BLOCKS)]
    x = torch.randn(MICRO_BATCHES * ROWS, LENGTH, WIDTH)
    if way == "none":
        model = torch.nn.Sequential(*blocks)

        def accumulate():
            for part in x.chunk(MICRO_BATCHES):
                (loss_of(model(part), None) / MICRO_BATCHES).backward()
    else:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        model = torch.nn.Sequential(*blocks[rank * BLOCKS // size:(rank + 1) * BLOCKS // size])
        stage = PipelineStage(model, rank, size, torch.device("cpu"))
        schedule = SCHEDULES[way](stage, MICRO_BATCHES, loss_fn=loss_of)
        nothing = torch.zeros(MICRO_BATCHES * ROWS)

        def accumulate():
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=nothing, losses=[], return_outputs=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step():
        accumulate()
        optimizer.step()
        optimizer.zero_grad()

    return accumulate, step


def peak_after(accumulate, step):
    """Gradients of parameters are there before."""
    accumulate()
    return peak_of(step)


def main(path, rank, size, store, way):
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    accumulate, step = make_training(way, rank, size, store)
    control = Control(path, rank)
    for what, *number in control.commands():
        control.send(measure(int(number[0]), step) if what == "steps" else [peak_after(accumulate, step)])
    if way != "none":
        dist.destroy_process_group()


main(*sys.argv[1:])
