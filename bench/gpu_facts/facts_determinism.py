"""i: equal bytes of gradients in 20 repetitions. Arguments: name of the process, deterministic|default. Prints hashes as facts."""
import hashlib
import sys
import time

import torch
from torch import nn
import torch.nn.functional as F

from facts_common import emit, item, note

name, mode = sys.argv[1], sys.argv[2]
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cuda"
TIMES = 20 if DEVICE != "cpu" else 2
strict = mode == "deterministic"
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = strict
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
if strict:
    torch.use_deterministic_algorithms(True)


def conv():
    net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
                        nn.AvgPool2d(2), nn.Conv2d(64, 64, 3, padding=1, groups=4), nn.ReLU(), nn.ConvTranspose2d(64, 32, 2, stride=2), nn.Flatten(), nn.Linear(32 * 256, 10))
    return net, torch.randn(64, 3, 32, 32), lambda net, x: F.cross_entropy(net(x), torch.arange(64, device=x.device) % 10)


def maxpool():
    net = nn.Sequential(nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10))
    return net, torch.randn(64, 1, 28, 28), lambda net, x: F.cross_entropy(net(x), torch.arange(64, device=x.device) % 10)


def lstm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm, self.gru, self.out = nn.Embedding(100, 64), nn.LSTM(64, 128, 2, batch_first=True), nn.GRU(128, 64, batch_first=True), nn.Linear(64, 100)

        def forward(self, x):
            return self.out(self.gru(self.lstm(self.embed(x))[0])[0])

    return Net(), torch.randint(100, (32, 50)), lambda net, x: F.cross_entropy(net(x).flatten(0, 1), x.flatten())


def embedding():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.bag, self.out = nn.Embedding(1000, 64), nn.EmbeddingBag(1000, 64, mode="sum"), nn.Linear(64, 1)

        def forward(self, x):
            return self.out(self.dense(x).sum(1) + self.bag(x)).square().mean()

    return Net(), torch.randint(50, (512, 100)), lambda net, x: net(x)


def transformer():
    layer = nn.TransformerEncoderLayer(256, 8, 512, dropout=0.1, batch_first=True)
    return nn.Sequential(layer), torch.randn(16, 128, 256), lambda net, x: net(x).square().mean()


def matmul():
    return nn.Sequential(nn.Linear(1000, 3000), nn.Tanh(), nn.LayerNorm(3000), nn.Linear(3000, 1)), torch.randn(777, 1000), lambda net, x: net(x).square().mean()


def scatter():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(100000))

        def forward(self, x):
            picked = self.w[x]  # index: index_put with accumulation in backward
            return (torch.zeros(100, device=x.device).index_add(0, x % 100, picked).square().sum() + picked.mean())

    return Net(), torch.randint(1000, (200000,)), lambda net, x: net(x)


def run(case):
    torch.manual_seed(3)
    net, x, loss_of = case()
    net, x = net.to(DEVICE), x.to(DEVICE)
    hashes = []
    begin = time.perf_counter()
    for _ in range(TIMES):
        torch.manual_seed(4)
        net.zero_grad(set_to_none=True)
        loss = loss_of(net, x)
        loss.backward()
        hash_of = hashlib.sha256(loss.detach().cpu().numpy().tobytes())
        for p in net.parameters():
            hash_of.update(p.grad.cpu().numpy().tobytes())
        hashes.append(hash_of.hexdigest()[:16])
    emit("i", "%s.distinct_of_20.%s.%s" % (mode, case.__name__, name), len(set(hashes)))
    note("i", "%s.hash.%s.%s" % (mode, case.__name__, name), hashes[0])


for case in (conv, maxpool, lstm, embedding, transformer, matmul, scatter):
    item("i", "%s.%s.%s" % (mode, case.__name__, name), lambda: run(case))


def refusals():  # what deterministic mode refuses, by name
    x = torch.randn(2, 4, 16, 16, device=DEVICE, requires_grad=True)
    q = torch.randn(2, 4, 64, 32, device=DEVICE, dtype=torch.float16, requires_grad=True)
    cases = {
        "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(x, 3).sum().backward(),
        "adaptive_max_pool2d": lambda: F.adaptive_max_pool2d(x, 3).sum().backward(),
        "avg_pool2d": lambda: F.avg_pool2d(x, 3).sum().backward(),
        "max_pool2d": lambda: F.max_pool2d(x, 3, stride=1).sum().backward(),
        "interpolate_bilinear": lambda: F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward(),
        "interpolate_nearest": lambda: F.interpolate(x, scale_factor=2).sum().backward(),
        "grid_sample": lambda: F.grid_sample(x, torch.zeros(2, 8, 8, 2, device=DEVICE), align_corners=False).sum().backward(),
        "reflection_pad2d": lambda: F.pad(x, (1, 1, 1, 1), mode="reflect").sum().backward(),
        "nll_loss2d": lambda: F.nll_loss(x, torch.zeros(2, 16, 16, dtype=torch.long, device=DEVICE)).backward(),
        "ctc_loss": lambda: F.ctc_loss(x.view(64, 2, 16).log_softmax(2), torch.ones(2, 5, dtype=torch.long, device=DEVICE), torch.full((2,), 64), torch.full((2,), 5)).backward(),
        "scatter_add": lambda: torch.zeros(4, device=DEVICE).scatter_add(0, torch.zeros(9, dtype=torch.long, device=DEVICE), torch.ones(9, device=DEVICE, requires_grad=True)).sum().backward(),
        "cumsum": lambda: x.cumsum(0).sum().backward(),
        "bincount_weights": lambda: torch.bincount(torch.zeros(9, dtype=torch.long, device=DEVICE), torch.ones(9, device=DEVICE)),
        "median": lambda: x.flatten().median(0).values.backward(),
        "scaled_dot_product_attention_half": lambda: F.scaled_dot_product_attention(q, q, q).sum().backward(),
        "embedding_bag_max": lambda: nn.EmbeddingBag(9, 4, mode="max", device=DEVICE)(torch.zeros(2, 3, dtype=torch.long, device=DEVICE)).sum().backward(),
        "sparse_embedding": lambda: nn.Embedding(9, 4, sparse=True, device=DEVICE)(torch.zeros(3, dtype=torch.long, device=DEVICE)).sum().backward(),
        "index_put_accumulate": lambda: torch.zeros(9, device=DEVICE).index_put_((torch.zeros(3, dtype=torch.long, device=DEVICE),), torch.ones(3, device=DEVICE), accumulate=True),
    }
    fine, refused = [], []
    for key, work in cases.items():
        try:
            work()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            fine.append(key)
        except Exception as error:  # noqa: B902
            refused.append(key)
            note("i", "refused." + key, str(error).split(". ")[0][:200])
    note("i", "deterministic_mode_accepts", " ".join(fine))
    note("i", "deterministic_mode_refuses", " ".join(refused))


if strict and name == "a":
    item("i", "refusals", refusals)
