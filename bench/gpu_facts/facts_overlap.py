"""j: gradients to pinned host memory by a side stream during backward: an MLP of 8 x 4096^2 float32."""
import sys
import time
import statistics

import torch

from facts_common import emit, event_ms, item, note, wall_ms

DEVICE = "cuda"
WIDTH, LAYERS = (int(sys.argv[1]) if len(sys.argv) > 1 else 4096), 8


class Offload:
    def __init__(self, parameters, copies=True, back=False):
        self.out, self.into = torch.cuda.Stream(), torch.cuda.Stream()
        self.host = [torch.empty(p.shape, dtype=p.dtype, pin_memory=True) for p in parameters]
        self.copies, self.back, self.handles = copies, back, []
        self.result = [torch.empty_like(p) for p in parameters] if back else None
        for k, p in enumerate(parameters):
            self.handles.append(p.register_post_accumulate_grad_hook(lambda q, k=k: self.take(k, q)))

    def take(self, k, parameter):
        gradient = parameter.grad
        ready = torch.cuda.Event()
        ready.record()
        if self.copies:
            self.out.wait_event(ready)
            with torch.cuda.stream(self.out):
                self.host[k].copy_(gradient, non_blocking=True)
            gradient.record_stream(self.out)
            if self.back:
                there = torch.cuda.Event()
                there.record(self.out)
                self.into.wait_event(there)
                with torch.cuda.stream(self.into):
                    self.result[k].copy_(self.host[k], non_blocking=True)
        parameter.grad = None

    def close(self):
        for handle in self.handles:
            handle.remove()


def measure(batch, tf32):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    tag = "batch%d%s" % (batch, ".tf32" if tf32 else "")
    torch.manual_seed(1)
    layers = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH, bias=False, device=DEVICE), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    parameters = list(model.parameters())
    x = torch.randn(batch, WIDTH, device=DEVICE)

    def backward_ms(finish=lambda: None, times=9):  # forward is not counted
        result = []
        for k in range(times + 3):
            loss = model(x).square().mean()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            loss.backward()
            torch.cuda.synchronize()
            finish()
            if k >= 3:
                result.append(1e3 * (time.perf_counter() - begin))
            for p in parameters:
                p.grad = None
        return statistics.median(result)

    alone = backward_ms()
    emit("j", "backward_alone.%s" % tag, alone, "ms")
    hooks = Offload(parameters, copies=False)
    only_hooks = backward_ms()
    hooks.close()
    emit("j", "backward_with_empty_hooks.%s" % tag, only_hooks, "ms")
    out = Offload(parameters)
    overlapped = backward_ms()
    emit("j", "backward_with_d2h.%s" % tag, overlapped, "ms until all copies are there")
    emit("j", "ratio_d2h.%s" % tag, overlapped / alone, "backward with D2H over backward alone")
    out.close()
    if batch == 1024 and not tf32:
        check = [torch.empty_like(h) for h in out.host]
        loss = model(x).square().mean()
        loss.backward()
        for p, c in zip(parameters, check):
            c.copy_(p.grad)
            p.grad = None
        note("j", "bytes_equal_to_backward_alone", all(torch.equal(a, b) for a, b in zip(out.host, check)))
    both = Offload(parameters, back=True)
    two_ways = backward_ms()
    both.close()
    emit("j", "backward_with_d2h_and_h2d.%s" % tag, two_ways, "ms until all is back on the device")
    emit("j", "ratio_d2h_and_h2d.%s" % tag, two_ways / alone, "over backward alone")
    del both
    if batch == 1024:
        gradients = [torch.randn_like(p) for p in parameters]
        size = sum(g.numel() * 4 for g in gradients)

        def copy():
            for h, g in zip(out.host, gradients):
                h.copy_(g, non_blocking=True)

        ms = wall_ms(torch, copy)
        emit("j", "d2h_alone.%s" % tag, ms, "ms, %d MiB, %.1f GB/s" % (size / 2**20, size / ms / 1e6))
    torch.cuda.empty_cache()


note("j", "settings", "%d layers of %d^2, float32" % (LAYERS, WIDTH))
for batch, tf32 in ((1024, False), (512, False), (4096, False), (1024, True)):
    item("j", "batch%d%s" % (batch, ".tf32" if tf32 else ""), lambda: measure(batch, tf32))
