#pragma once

// What the driver of NVIDIA's GPUs tells, by C functions of its library, which is looked for at run
// time. No context is made on a GPU.
//
// Threads: any. Failure: none; what is missing is a text.

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct Gpu {
  std::string name;  ///< "NVIDIA H200"
  int multiprocessors = 0;
  std::uint64_t bytes = 0;  ///< of its memory
  std::string uuid;         ///< "GPU-8f4bd2c1-…": the same in every process
};

struct GpuDriver {
  int cuda = 0;           ///< the version of CUDA that it offers: 13000 is 13.0
  std::vector<Gpu> gpus;  ///< by the numbers that CUDA gives them in this process
  std::string problem;    ///< empty: it works
};

/// Loads the driver's library, and begins its use: a child that this process forks afterwards
/// cannot use a GPU.
GpuDriver read_gpu_driver();
/// Displays and accelerators of NVIDIA's on this machine's PCI bus, with a driver or without.
int gpus_on_bus();
/// Whether this process has a context on a GPU. Loads nothing.
bool has_gpu_context();

/// The variable by which cuBLAS and cuDNN compute the same bits in every run. They read it at their
/// first use.
inline constexpr const char* kCublasWorkspace = "CUBLAS_WORKSPACE_CONFIG";
/// Sets it to ":4096:8" where it is not set, unless this process has a context on a GPU already.
void set_cublas_workspace();
/// Whether it has a value with which their results are deterministic.
bool is_cublas_deterministic();

}  // namespace tutti
