"""torch.distributed's DistributedDataParallel on one device, beside the same steps without it, in turns:

    ddp.py --backend gloo --workers 2 --rounds 14 --device cuda mlp25m:64 lstm:8

Prints a line of JSON for each MODEL:TIMES, of rank 0. The models are those of bench/step."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist

from step.models import make_optimizer, make_task

WARM_UP = 2


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def make_step(name, times, rank, device, wrap):
    model, x, loss = make_task(name, rank, times, device)
    model = wrap(model)
    optimizer = make_optimizer("adam", model.parameters())

    def step():
        loss(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds_of(device, call):
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin


def rank_of(rank, options, store):
    device = torch.device(options.device, 0) if options.device != "cpu" else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    dist.init_process_group(options.backend, init_method=f"file://{store}", rank=rank, world_size=options.workers)
    for model in options.models:
        name, times = model.split(":")
        plain = make_step(name, int(times), rank, device, lambda model: model)
        ddp = make_step(name, int(times), rank, device, lambda model: torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, static_graph=True))
        alone, together = [], []
        for _ in range(options.rounds):
            dist.barrier()
            alone.append(seconds_of(device, plain))
            dist.barrier()
            together.append(seconds_of(device, ddp))
        if rank == 0:
            print(json.dumps({
                "part": "rival", "model": name, "times": int(times), "workers": options.workers,
                "backend": options.backend, "device": str(device),
                "plain_ms": 1e3 * statistics.median(alone[WARM_UP:]),
                "ddp_ms": 1e3 * statistics.median(together[WARM_UP:])}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("gloo", "nccl"), required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("models", nargs="+", metavar="MODEL:TIMES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of, (options, folder + "/store"), nprocs=options.workers)


if __name__ == "__main__":
    main()
