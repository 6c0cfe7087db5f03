"""g: Adam on the device for 250 M parameters: torch's fused one, and single IEEE operations of ATen."""
import sys

import numpy as np
import torch

from facts_common import emit, event_ms, item, note

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 250_000_000
S = 4.0 * COUNT
f32 = np.float32
beta1, fresh1, beta2, fresh2, eps = f32(0.9), f32(1 - 0.9), f32(0.999), f32(1 - 0.999), f32(1e-8)
rate, root = f32(1e-2 / (1 - 0.9**3)), f32((1 - 0.999**3) ** 0.5)


def composed(p, m, v, g, root_on_device, t=None):  # 14 launches; with `t`: two kept temporaries, no allocation
    if t is None:
        m.mul_(float(beta1)).add_(g * float(fresh1))
        v.mul_(float(beta2)).add_((g * float(fresh2)).mul_(g))
        below = v.sqrt().div_(root_on_device).add_(float(eps))
        p.sub_((m * float(rate)).div_(below))
        return
    a, b = t
    m.mul_(float(beta1))
    torch.mul(g, float(fresh1), out=a)
    m.add_(a)
    v.mul_(float(beta2))
    torch.mul(g, float(fresh2), out=a)
    a.mul_(g)
    v.add_(a)
    torch.sqrt(v, out=a)
    a.div_(root_on_device).add_(float(eps))
    torch.mul(m, float(rate), out=b)
    b.div_(a)
    p.sub_(b)


def bits():
    n = min(COUNT, 1 << 22)
    random = np.random.default_rng(5)
    p, g = random.standard_normal(n).astype(f32), random.standard_normal(n).astype(f32)
    m, v = (0.1 * random.standard_normal(n)).astype(f32), (random.standard_normal(n) ** 2 * 0.1).astype(f32)
    on = [torch.from_numpy(t.copy()).to(DEVICE) for t in (p, m, v, g)]
    kept = [torch.from_numpy(t.copy()).to(DEVICE) for t in (p, m, v, g)]
    r = torch.full((), float(root), device=DEVICE)
    composed(*on, r)
    composed(*kept, r, (torch.empty_like(kept[0]), torch.empty_like(kept[0])))
    m1 = beta1 * m + fresh1 * g
    v1 = beta2 * v + (fresh2 * g) * g
    p1 = p - (rate * m1) / (np.sqrt(v1) / root + eps)
    for name, have in (("composed", on), ("composed_kept_temporaries", kept)):
        n_wrong = sum(int((h.cpu().numpy().view(np.int32) != w.view(np.int32)).sum()) for h, w in zip(have[:3], (p1, m1, v1)))
        emit("g", "differ.%s_adam" % name, n_wrong, "words of p, m, v, 3 x %d" % n)
    fused = [torch.from_numpy(t.copy()).to(DEVICE) for t in (p, m, v, g)]
    torch._fused_adam_([fused[0]], [fused[3]], [fused[1]], [fused[2]], [], [torch.full((), 3.0, device=DEVICE)], lr=1e-2, beta1=0.9, beta2=0.999,
                       weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
    emit("g", "differ.fused_adam", int((fused[0].cpu().numpy().view(np.int32) != p1.view(np.int32)).sum()), "words of p, of %d" % n)


def times():
    p, m, g = (torch.randn(COUNT, device=DEVICE) for _ in range(3))
    v = torch.rand(COUNT, device=DEVICE)
    m.mul_(0.1)
    other = torch.empty_like(p)
    copy = event_ms(torch, lambda: other.copy_(p))
    emit("g", "copy_of_S", copy, "ms")
    emit("g", "copy_rate", 2 * S / copy / 1e6, "GB/s read+written")
    step = torch.full((), 3.0, device=DEVICE)

    def fused():
        torch._fused_adam_([p], [g], [m], [v], [], [step], lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)

    ms = event_ms(torch, fused)
    emit("g", "fused_adam", ms, "ms, one tensor of 250 M")
    emit("g", "fused_adam_rate", 7 * S / ms / 1e6, "GB/s of 7 S")
    many = [list(t.view(100, -1).unbind(0)) for t in (p, g, m, v)] if COUNT % 100 == 0 else None
    if many:
        steps = [step.clone() for _ in range(100)]
        ms = event_ms(torch, lambda: torch._fused_adam_(*many, [], steps, lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False))
        emit("g", "fused_adam_100_tensors", ms, "ms")
    r = torch.full((), float(root), device=DEVICE)
    ms = event_ms(torch, lambda: composed(p, m, v, g, r))
    emit("g", "composed_adam", ms, "ms, single operations of ATen, temporaries allocated")
    emit("g", "composed_adam_rate", 31 * S / ms / 1e6, "GB/s of 31 S")
    t = (torch.empty_like(p), torch.empty_like(p))
    ms = event_ms(torch, lambda: composed(p, m, v, g, r, t))
    emit("g", "composed_adam_kept_temporaries", ms, "ms")
    tile = 1 << 20  # tiles that stay in the L2 cache

    def tiled():
        a, b = t[0][:tile], t[1][:tile]
        for k in range(0, COUNT, tile):
            e = min(k + tile, COUNT)
            composed(p[k:e], m[k:e], v[k:e], g[k:e], r, (a[: e - k], b[: e - k]))

    ms = event_ms(torch, tiled, times=5, warm=1)
    emit("g", "composed_adam_tiles_of_1M", ms, "ms, 14 launches a tile of 4 MiB")
    nodes = [g, p, m, v, other, t[0]]

    def pairwise():
        torch.add(nodes[0], nodes[1], out=t[1])
        torch.add(nodes[2], nodes[3], out=other)
        t[1].add_(other)

    ms = event_ms(torch, pairwise)
    emit("g", "fold_of_4_nodes_by_add", ms, "ms, 3 launches, 9 S")
    ms = event_ms(torch, lambda: t[1].add_(g))
    emit("g", "leaf_added_to_node", ms, "ms, 3 S")
    small = torch.zeros(1, device=DEVICE)
    ms = event_ms(torch, lambda: torch.isfinite(g).all(), times=5)
    emit("g", "isfinite_all", ms, "ms")
    ms = event_ms(torch, lambda: torch.linalg.vector_norm(g), times=5)
    emit("g", "vector_norm", ms, "ms")
    ms = event_ms(torch, lambda: other.view(torch.bfloat16)[:COUNT].copy_(g), times=5)
    emit("g", "to_bfloat16", ms, "ms, 1.5 S")
    del small


item("g", "bits", bits)
item("g", "times", times)
