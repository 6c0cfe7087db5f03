"""h: two ranks on one GPU through NCCL. Started twice: rank, file of the store, name of the attempt."""
import datetime
import sys
import time

import torch
import torch.distributed as dist

from facts_common import emit, note

rank, store, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
try:
    torch.cuda.set_device(0)
    begin = time.perf_counter()
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=15))
    x = torch.arange(256, dtype=torch.float32, device="cuda") * (rank + 1)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 0:
        right = torch.equal(x.cpu(), torch.arange(256, dtype=torch.float32) * 3)
        note("h", name + ".all_reduce", "works, right sum" if right else "WRONG sum")
        emit("h", name + ".first_all_reduce", time.perf_counter() - begin, "s, communicator included")
    for size in (1 << 10, 1 << 20, 1 << 24):
        y = torch.ones(size // 4, device="cuda")
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            dist.all_reduce(y)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        if rank == 0:
            emit("h", name + ".all_reduce.%dKiB" % (size >> 10), 1e3 * sorted(times)[2], "ms")
except BaseException as error:  # noqa: B902
    if rank == 0:
        note("h", name + ".failed", (type(error).__name__ + ": " + str(error).replace("\n", " "))[:500])
sys.stdout.flush()
import os  # noqa: E402

os._exit(0)
