"""a: the machine."""
import os
import platform
import subprocess

from facts_common import emit, item, note


def machine():
    note("a", "kernel", platform.platform())
    emit("a", "nproc", os.cpu_count())
    emit("a", "affinity", len(os.sched_getaffinity(0)))

    def text(command):
        try:
            return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20).stdout.strip()
        except Exception as error:  # noqa: B902
            return "failed: %s" % error

    fields = ("name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,memory.total,clocks.sm,clocks.max.sm,"
              "clocks.mem,power.limit,compute_mode,mig.mode.current,persistence_mode")
    values = text("nvidia-smi --query-gpu=%s --format=csv,noheader" % fields)
    for field, value in zip(fields.split(","), values.splitlines()[0].split(", ") if values else []):
        note("a", "smi." + field, value)
    note("a", "cpu", text("lscpu | grep -E 'Model name|Socket|NUMA node\\(s\\)|L3|Thread' | sed 's/  */ /g' | tr '\\n' ';'"))
    note("a", "cpu_flags", " ".join(f for f in text("grep -m1 flags /proc/cpuinfo").split() if f.startswith(("avx512f", "avx2", "fma", "amx_tile", "pku", "clflushopt"))))
    note("a", "memory", text("grep -E 'MemTotal|MemFree|HugePages_Total|Hugepagesize|ShmemHugePages' /proc/meminfo | tr -s ' \\n' ' '"))
    note("a", "thp", text("cat /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/transparent_hugepage/shmem_enabled | tr '\\n' ';'"))
    note("a", "limits", text("echo memlock $(ulimit -l) nofile $(ulimit -n)"))
    note("a", "shm", text("df -h /dev/shm | tail -1"))
    note("a", "glibc", text("ldd --version | head -1"))
    note("a", "compilers", text("g++ --version | head -1; nvcc --version | grep release; command -v nvcc cmake ninja compute-sanitizer ncu | tr '\\n' ' '"))
    note("a", "packages", text("dpkg -l 2>/dev/null | grep -E 'libspdlog|libfmt|libhwy|libxxhash|libcli11|nlohmann|libssl-dev|libgtest' | tr -s ' ' | cut -d' ' -f2,3 | tr '\\n' ';'"))


def torch_facts():
    import torch
    note("a", "torch", torch.__version__)
    note("a", "torch_file", torch.__file__)
    emit("a", "torch_cxx11_abi", int(torch._C._GLIBCXX_USE_CXX11_ABI))
    note("a", "torch_cuda", torch.version.cuda)
    note("a", "cudnn", torch.backends.cudnn.version())
    note("a", "nccl", ".".join(map(str, torch.cuda.nccl.version())))
    note("a", "arch_list", torch.cuda.get_arch_list())
    emit("a", "devices", torch.cuda.device_count())
    p = torch.cuda.get_device_properties(0)
    note("a", "device", p.name)
    emit("a", "sms", p.multi_processor_count)
    note("a", "capability", "%d.%d" % (p.major, p.minor))
    emit("a", "device_memory", p.total_memory / 2**30, "GiB")
    emit("a", "l2", getattr(p, "L2_cache_size", 0) / 2**20, "MiB")
    for name in ("pci_bus_id", "uuid", "is_integrated", "regs_per_multiprocessor"):
        note("a", name, getattr(p, name, "?"))
    free, total = torch.cuda.mem_get_info()
    emit("a", "device_memory_in_use_at_start", (total - free) / 2**20, "MiB")
    note("a", "tf32_defaults", "cudnn %s, matmul %s" % (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))


item("a", "machine", machine)
item("a", "torch", torch_facts)
