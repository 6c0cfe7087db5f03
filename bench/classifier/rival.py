"""PyTorch's ways of training the last layer of a classifier, one rank.

    rival.py SOCKET (chunked:ROWS | ddp) CLASSES DIM BATCH RANK SIZE STORE

chunked is linear_cross_entropy with so many samples at a time; 0: as many as torch chooses.
"""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist

from common.control import Control, measure


def status(entry):
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(entry):
                return int(line.split()[1]) * 1024
    raise SystemExit(f"no {entry} in /proc/self/status")


def layer_of(way, classes, x, y):
    """One step, and bytes of weights and momentum."""
    head = torch.nn.Linear(x.shape[1], classes, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(head, gradient_as_bucket_view=True) if way == "ddp" else head
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    if way == "ddp":
        def loss_of():
            return torch.nn.functional.cross_entropy(model(x), y)
    else:
        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            raise SystemExit(f"torch {torch.__version__} has no chunked linear_cross_entropy: 2.13 has")
        rows = int(way.split(":")[1])
        # Without options it computes all logits at once.
        options = (torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None) if rows else
                   torch.nn.LinearCrossEntropyOptions())

        def loss_of():
            return torch.nn.functional.linear_cross_entropy(x, head.weight, y, options=options)

    def step():
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
        x.grad = None

    return step, 2 * head.weight.nbytes


def main(socket, way, classes, dim, batch, rank, size, store):
    torch.set_num_threads(1)
    control = Control(socket, rank)
    if way == "ddp":
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.manual_seed(1)
    x = torch.randn(batch, dim).chunk(size)[rank].clone().requires_grad_()
    y = torch.randint(classes, (batch,)).chunk(size)[rank].clone()
    layer_of(way, 64, x, y % 64)[0]()  # libraries load and allocate on first use
    before = status("VmRSS:")
    step, weights = layer_of(way, classes, x, y)
    for what, *arguments in control.commands():
        if what == "steps":
            control.send(measure(int(arguments[0]), step))
        elif what == "peak":
            control.send([status("VmHWM:") - before, weights])
        else:
            raise SystemExit(f"unknown command: {what}")


main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:8]), sys.argv[8])
