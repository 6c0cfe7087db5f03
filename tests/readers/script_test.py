"""script_test.py TUTTI SCRIPT_TRAINER TORCH: a model that Python defines is trained by a program in C++, on 1, 2 and 3
workers to the same bytes, and read back in Python, where it computes what it does in C++, and what Python's own training
makes of it. TORCH is the libtorch that all use."""
import pathlib
import sys
import tempfile

import packages

WRITER = """
import sys, torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
    def forward(self, x):
        return x + torch.sigmoid(self.norm(self.inner(x))) * x
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.last = torch.nn.Linear(8, 1)
    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)
torch.manual_seed(1)
torch.jit.script(Net()).save(sys.argv[1] + "/model.pt")
"""

READER = """
import sys, torch
folder, *numbers = sys.argv[1:]
x = torch.linspace(-1, 1, 24 * 6).reshape(24, 6)
y = x.square().sum(1, True)
own = torch.jit.load(folder + "/model.pt")
optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
for step in range(10):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(own(x), y).backward()
    optimizer.step()
theirs = torch.jit.load(folder + "/trained.pt")
for (name, mine), other in zip(own.state_dict().items(), theirs.state_dict().values()):
    torch.testing.assert_close(other, mine, rtol=1e-5, atol=1e-6, msg=name)
said = torch.tensor([float(number) for number in numbers])
torch.testing.assert_close(theirs(x).flatten(), said, rtol=1e-5, atol=1e-6)
print("largest difference from Python's own training:",
      max((a - b).abs().max().item() for a, b in zip(own.parameters(), theirs.parameters())))
"""


def main():
    tutti, program, torch = sys.argv[1:]
    python, environment = packages.python_with_torch(torch, [packages.vision_of(torch)])
    with tempfile.TemporaryDirectory() as folder:
        writer = pathlib.Path(folder) / "writer.py"  # torch.jit.script() reads its source
        writer.write_text(WRITER)
        packages.run([python, writer, folder], env=environment)
        said = []
        for workers in ("1", "2", "3"):
            printed = packages.run([tutti, "run", "-n", workers, program, f"{folder}/model.pt", f"{folder}/trained.pt"],
                                   env={"PATH": "/usr/bin:/bin", "TUTTI_LOG": "error"})
            said.append([line.split()[1] for line in printed.splitlines() if line.startswith("[0] ")])
        if len(said[0]) != 24 or said[1] != said[0] or said[2] != said[0]:
            sys.exit(f"1, 2 and 3 workers computed {said}")
        print(packages.run([python, "-c", READER, folder, *said[0]], env=environment).strip())


main()
