"""weights_test.py RESNET18 TORCH: a program in C++ takes weights that Python has saved, torchvision's ResNet-18 by its
names, and computes what Python does. TORCH is the libtorch that both use."""
import sys
import tempfile

import packages

WRITER = """
import sys, torch, types
# Its library may be one for CUDA, which a torch for the CPU does not load: its models need none of its operators.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("_meta_registrations")
import torchvision
from safetensors.torch import save_file
torch.manual_seed(1)
net = torchvision.models.resnet18()
with torch.no_grad():
    for name, buffer in net.named_buffers():  # statistics of some training
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
net.eval()
input = torch.rand(2, 3, 96, 96)
save_file(net.state_dict(), sys.argv[1] + "/weights.safetensors")
save_file({"input": input, "output": net(input).detach()}, sys.argv[1] + "/example.safetensors")
"""


def main():
    program, torch = sys.argv[1:]
    python, environment = packages.python_with_torch(torch, [packages.vision_of(torch)])
    with tempfile.TemporaryDirectory() as folder:
        packages.run([python, "-c", WRITER, folder], env=environment)
        print(packages.run([program, f"{folder}/weights.safetensors", f"{folder}/example.safetensors"]).strip())


main()
