#pragma once

// What `tutti doctor` looks at. Gathering has effects on nothing; judging is in doctor_report.h.

#include <optional>
#include <string>
#include <vector>

#include "base/cpu_level.h"
#include "base/system.h"
#include "environment/gpu_driver.h"

namespace tutti::command {

struct MachineFacts {
  std::string version;
  std::string torch;   ///< libtorch's version; empty: core-only build
  std::string kernel;  ///< "6.1.0-18-amd64"
  int processors_present = 0;
  int processors_allowed = 0;          ///< by affinity
  std::optional<int> processor_quota;  ///< of the cgroups, rounded up
  int processors = 0;                  ///< what is left to use
  std::vector<MemoryBound> memory;
  std::string huge_pages_shared;        ///< "advise", "never", …; empty: unknown
  std::optional<long> huge_pages_free;  ///< reserved ones
  std::string simd;                     ///< that Tutti's own kernels use
  Processor processor;
  LibrarySettings libraries;          ///< variables of libtorch, MKL and oneDNN that are set
  std::string sealed_memory_problem;  ///< empty: it works
  std::string life_line_problem;      ///< likewise
  bool has_gloo = false;              ///< this build has the link over Gloo
  std::string mpi;                    ///< "Open MPI v4.1.4"; empty: mpi_problem tells why not
  std::string mpi_problem;
  GpuDriver gpu_driver;
  int gpus_on_bus = 0;  ///< of NVIDIA's, with a driver or without
};

MachineFacts gather_facts(System& system);

/// "advise" of "always within_size [advise] never": the kernel's way of marking a choice.
std::string chosen(const std::string& choices);

}  // namespace tutti::command
