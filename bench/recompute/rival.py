"""The same steps as bench_recompute's in Python, with torch.utils.checkpoint.

    rival.py (lstm | blocks) ROUNDS

Bytes are those of libtorch's allocator, as its profiler reports them.
"""

import json
import math
import os
import sys
import time

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from common.torch_memory import peak_of


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 8)
        self.first = torch.nn.LayerNorm(width)
        self.second = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        normal = self.first(x)
        y = x + self.attention(normal, normal, normal)[0]
        return y + self.down(torch.nn.functional.gelu(self.up(self.second(y))))


def lstm():
    net = torch.nn.LSTM(256, 256, num_layers=2)
    x = torch.randn(1024, 16, 256)

    def over(again, chunks):
        def step():
            outputs = []
            state = (torch.zeros(2, 16, 256), torch.zeros(2, 16, 256))
            for part in x.chunk(chunks):
                y, state = checkpoint(net, part, state, use_reentrant=False) if again else net(part, state)
                outputs.append(y)
            return torch.cat(outputs).square().mean()
        return step

    return net, {"plain": over(False, 1), "plain, 32 chunks": over(False, 32), "again, 32 chunks": over(True, 32)}


def blocks():
    layers = torch.nn.Sequential(*(Block(256) for _ in range(24)))
    x = torch.randn(128, 8, 256)
    segments = math.ceil(math.sqrt(24))
    return layers, {"plain": lambda: layers(x).square().mean(),
                    "again, 5 segments": lambda: checkpoint_sequential(layers, segments, x, use_reentrant=False)
                    .square().mean()}


def main(model, rounds):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net, ways = {"lstm": lstm, "blocks": blocks}[model]()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    answer = {name: {"peak": peak_of(lambda: step().backward()), "ns": []} for name, step in ways.items()}
    for _ in range(rounds):
        for name, step in ways.items():
            begun = time.monotonic_ns()
            step().backward()
            answer[name]["ns"].append(time.monotonic_ns() - begun)
    print(json.dumps(answer))


main(sys.argv[1], int(sys.argv[2]))
