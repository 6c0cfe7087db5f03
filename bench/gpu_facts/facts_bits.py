"""f: bits of ATen's operators on CUDA against IEEE results of numpy on the host, over 2^24 random operands."""
import sys

import numpy as np
import torch

from facts_common import emit, item, note

COUNT = 1 << (int(sys.argv[2]) if len(sys.argv) > 2 else 24)
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
f32 = np.float32
np.seterr(all="ignore")


def operand(kind, seed):
    random = np.random.default_rng(seed)
    word = random.integers(0, 1 << 32, COUNT, dtype=np.uint32)
    if kind == "sane":  # exponents 2^-16 .. 2^15
        word = (word & np.uint32(0x807FFFFF)) | ((np.uint32(111) + ((word >> np.uint32(23)) & np.uint32(31))) << np.uint32(23))
    else:  # every pattern, with more of zeros, infinities and subnormals
        low = word[: COUNT // 16] & np.uint32(0x807FFFFF)
        word[: COUNT // 16] = low  # subnormal
        word[COUNT // 16 : COUNT // 16 + 4096] &= np.uint32(0x80000000)
        word[COUNT // 16 + 4096 : COUNT // 16 + 8192] = (word[COUNT // 16 + 4096 : COUNT // 16 + 8192] & np.uint32(0x80000000)) | np.uint32(0x7F800000)
        word = word[random.permutation(COUNT)] if COUNT <= (1 << 20) else np.roll(word, int(seed) * 524288 + 77)
    return word.view(f32)


def compare(name, kind, got, expected):
    """Words that differ; two NaNs are equal."""
    integer = {2: np.int16, 4: np.int32, 8: np.int64}[got.element_size()]
    host = got.detach().cpu()
    if host.dtype == torch.bfloat16 or host.dtype == torch.float16:
        have = host.view(torch.int16).numpy()
        nan_have = torch.isnan(host).numpy()
    else:
        have = host.numpy().view(integer)
        nan_have = np.isnan(host.numpy())
    if isinstance(expected, tuple):  # bits of 16-bit values, and where they are NaN
        want, nan_want = expected
    else:
        want, nan_want = expected.view(integer), np.isnan(expected)
    differ = (have != want) & ~(nan_have & nan_want)
    n = int(differ.sum())
    emit("f", "differ.%s.%s" % (name, kind), n, "of %d" % COUNT)
    if n:
        at = int(np.argmax(differ))
        note("f", "differ.%s.%s.example" % (name, kind), "index %d: got %s (%#x), want %#x" % (at, float(host[at].float()), int(have[at]) & 0xFFFFFFFF, int(want[at]) & 0xFFFFFFFF))
        steps = np.abs(have[differ].astype(np.int64) - want[differ].astype(np.int64))
        emit("f", "differ.%s.%s.median_steps" % (name, kind), float(np.median(steps)), "ulp")
        emit("f", "differ.%s.%s.most_steps" % (name, kind), int(steps.max()), "ulp")


def to_bf16(x):
    word = x.view(np.uint32)
    rounded = ((word.astype(np.uint64) + 0x7FFF + ((word >> np.uint32(16)) & np.uint32(1))) >> 16).astype(np.uint16)
    return rounded.view(np.int16), np.isnan(x)


def to_half(x):
    return x.astype(np.float16).view(np.int16), np.isnan(x)


def run(kind):
    a, b, c = (operand(kind, s) for s in (1, 2, 3))
    positive = np.abs(a)
    A, B, C, P = (torch.from_numpy(t.copy()).to(DEVICE) for t in (a, b, c, positive))

    def one(name, got, expected):
        def work():
            compare(name, kind, got(), expected())
        try:
            work()
        except Exception as error:  # noqa: B902
            note("f", "error.%s.%s" % (name, kind), str(error)[:300])

    s = f32(0.1)
    zero_dim = torch.full((), 3.0, device=DEVICE)
    # Single IEEE operations: 0 expected.
    one("add", lambda: A + B, lambda: a + b)
    one("sub", lambda: A - B, lambda: a - b)
    one("add_inplace", lambda: A.clone().add_(B), lambda: a + b)
    one("mul", lambda: A * B, lambda: a * b)
    one("mul_scalar_0.1", lambda: A * 0.1, lambda: a * s)
    one("add_scalar_0.1", lambda: A + 0.1, lambda: a + s)
    one("div_tensor", lambda: A / B, lambda: a / b)
    one("div_0dim_device_3", lambda: A / zero_dim, lambda: a / f32(3))
    one("div_0dim_device_3_inplace", lambda: A.clone().div_(zero_dim), lambda: a / f32(3))
    one("div_scalar_3", lambda: A / 3.0, lambda: a / f32(3))
    one("div_scalar_7_inplace", lambda: A.clone().div_(7.0), lambda: a / f32(7))
    one("div_scalar_8", lambda: A / 8.0, lambda: a / f32(8))
    one("div_0dim_cpu_3", lambda: A / torch.tensor(3.0), lambda: a / f32(3))
    one("scalar_div_1", lambda: 1.0 / A, lambda: f32(1) / a)
    one("reciprocal", lambda: torch.reciprocal(A), lambda: f32(1) / a)
    one("sqrt", lambda: torch.sqrt(P), lambda: np.sqrt(positive))
    one("pow_0.5", lambda: P.pow(0.5), lambda: np.sqrt(positive))
    one("rsqrt_vs_1/sqrt", lambda: torch.rsqrt(P), lambda: f32(1) / np.sqrt(positive))
    one("square", lambda: A.square(), lambda: a * a)
    one("neg", lambda: -A, lambda: -a)
    one("copy_float", lambda: torch.empty_like(A).copy_(A), lambda: a)
    one("to_bfloat16", lambda: A.to(torch.bfloat16), lambda: to_bf16(a))
    one("to_half", lambda: A.to(torch.float16), lambda: to_half(a))
    one("bfloat16_to_float", lambda: A.to(torch.bfloat16).float(), lambda: ((a.view(np.uint32).astype(np.uint64) + 0x7FFF + ((a.view(np.uint32) >> np.uint32(16)) & np.uint32(1))) >> 16 << 16).astype(np.uint32).view(f32) if kind == "sane" else torch.from_numpy(a).to(torch.bfloat16).float().numpy())
    one("foreach_add", lambda: torch._foreach_add([A], [B])[0], lambda: a + b)
    one("foreach_mul", lambda: torch._foreach_mul([A], [B])[0], lambda: a * b)
    one("foreach_div", lambda: torch._foreach_div([A], [B])[0], lambda: a / b)
    one("foreach_sqrt", lambda: torch._foreach_sqrt([P])[0], lambda: np.sqrt(positive))
    one("foreach_div_scalar_3", lambda: torch._foreach_div([A], 3.0)[0], lambda: a / f32(3))
    one("double_add", lambda: A.double() + B.double(), lambda: a.astype(np.float64) + b.astype(np.float64))
    one("double_sqrt_div", lambda: P.double().sqrt() / B.double(), lambda: np.sqrt(positive.astype(np.float64)) / b.astype(np.float64))
    # Two operations in one: rounded twice on the host.
    one("add_alpha_1", lambda: torch.add(A, B, alpha=1), lambda: a + b)
    one("add_alpha_-1", lambda: torch.add(A, B, alpha=-1), lambda: a - b)
    one("add_alpha_0.1", lambda: torch.add(A, B, alpha=0.1), lambda: a + s * b)
    one("sub_alpha_0.1", lambda: torch.sub(A, B, alpha=0.1), lambda: a - s * b)
    one("addcmul_1", lambda: A.clone().addcmul_(B, C), lambda: a + b * c)
    one("addcmul_0.1", lambda: A.clone().addcmul_(B, C, value=0.1), lambda: a + (s * b) * c)
    one("addcdiv_1", lambda: A.clone().addcdiv_(B, C), lambda: a + b / c)
    one("addcdiv_-0.1", lambda: A.clone().addcdiv_(B, C, value=-0.1), lambda: a + (f32(-0.1) * b) / c)
    one("addcdiv_-0.1_other_order", lambda: A.clone().addcdiv_(B, C, value=-0.1), lambda: a + f32(-0.1) * (b / c))
    one("lerp_0.1", lambda: torch.lerp(A, B, 0.1), lambda: a + s * (b - a))
    one("foreach_add_alpha_0.1", lambda: torch._foreach_add([A], [B], alpha=0.1)[0], lambda: a + s * b)
    one("mul_then_add", lambda: (B * 0.1).add_(A), lambda: a + s * b)
    if DEVICE != "cpu":
        one("cpu_aten_sqrt_for_comparison", lambda: torch.sqrt(torch.from_numpy(positive)), lambda: np.sqrt(positive))


def main():
    if DEVICE != "cpu":
        torch.zeros(1, device=DEVICE)
    note("f", "bits_settings", "numpy %s, torch %s, %s, %d operands" % (np.__version__, torch.__version__, DEVICE, COUNT))
    for kind in (sys.argv[3:] or ["sane", "patterns"]):
        item("f", "bits_" + kind, lambda kind=kind: run(kind))


main()
