"""The models of models.cpp, for PyTorch's DistributedDataParallel."""

import torch
from torch import nn

LEARNING_RATE = 1e-4
WORDS = 200000
MLPS = {"mlp": (8, 1024), "mlp25m": (6, 2048), "mlp50m": (12, 2048)}


class CharacterModel(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.embedding = nn.Embedding(characters, 256)
        self.lstm = nn.LSTM(256, 512, num_layers=2, batch_first=True)
        self.output = nn.Linear(512, characters)

    def forward(self, text):
        return self.output(self.lstm(self.embedding(text))[0]).flatten(0, 1)


def make_task(name, rank, times=1, device="cpu"):
    """The model, its input, and the loss as a function of the model's output. A batch is so many times what one
    worker has."""
    torch.manual_seed(rank + 1)
    if name in MLPS:
        layers, width = MLPS[name]
        model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
        x, y, loss = torch.randn(16 * times, width), torch.randn(16 * times, width), nn.functional.mse_loss
    elif name == "many":
        model = nn.Sequential(*(part for _ in range(150) for part in (nn.Linear(32, 32), nn.Tanh())))
        x, y, loss = torch.randn(16 * times, 32), torch.randn(16 * times, 32), nn.functional.mse_loss
    elif name == "lstm":
        model = CharacterModel(100)
        x, y = torch.randint(100, (8 * times, 64)), torch.randint(100, (8 * times * 64,))
        loss = nn.functional.cross_entropy
    elif name == "convolution":
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, 10))
        x, y = torch.randn(16 * times, 3, 32, 32), torch.randint(10, (16 * times,))
        loss = nn.functional.cross_entropy
    elif name == "digits":
        model = nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2),
            nn.ReLU(), nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10))
        x, y = torch.randn(16 * times, 1, 28, 28), torch.randint(10, (16 * times,))
        loss = nn.functional.cross_entropy
    else:
        rows, words = (32, 20) if name == "embedding" else (64, 16)
        model = nn.Sequential(nn.EmbeddingBag(WORDS, 64, sparse=name == "sparse_bag"), nn.Linear(64, 10))
        x, y = torch.randint(WORDS, (rows * times, words)), torch.randint(10, (rows * times,))
        loss = nn.functional.cross_entropy
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.05, 0.05)
    y = y.to(device)
    return model.to(device), x.to(device), lambda output: loss(output, y)


class Both:
    """SparseAdam for a table, fused Adam for the rest."""

    def __init__(self, parameters):
        tables, rest = [], []
        for parameter in parameters:
            (tables if len(parameter) == WORDS else rest).append(parameter)
        self._parts = [make_optimizer("fused", rest)]
        if tables:
            self._parts.append(torch.optim.SparseAdam(tables, lr=LEARNING_RATE))

    def step(self):
        for part in self._parts:
            part.step()

    def zero_grad(self):
        for part in self._parts:
            part.zero_grad()


def make_optimizer(name, parameters):
    if name == "sparse":
        return Both(parameters)
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=name == "fused")
