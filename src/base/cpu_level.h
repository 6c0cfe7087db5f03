#pragma once

// Bounds on the instruction sets that libtorch, oneDNN and MKL use, so that processors of several
// kinds compute the same bits: what `tutti run --cpu` sets, and how a worker recognises it.
//
// Threads: pure functions. Failure: none.

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/processor.h"

namespace tutti {

/// Values of the libraries' variables, by name: Environment::libraries.
using LibrarySettings = std::map<std::string, std::string>;

struct CpuLevel {
  std::string_view name;               ///< as ATEN_CPU_CAPABILITY has it
  std::string_view onednn;             ///< ONEDNN_MAX_CPU_ISA; "" where it has no value for that
  std::string_view mkl;                ///< MKL_CBWR; "" where there is no MKL
  std::span<const char* const> needs;  ///< flags of a processor that has it
  /// Library that no variable bounds: it chooses by the processor under every level. "" for none.
  std::string_view unbounded = {};
  LibrarySettings settings() const;
};

/// From the least to the most.
std::span<const CpuLevel> cpu_levels(Architecture architecture = kArchitecture);
/// Null where there is none of that name.
const CpuLevel* find_cpu_level(std::string_view name, Architecture architecture = kArchitecture);
/// The level, of any architecture, that these settings make; null where they make none, so that
/// libraries choose by the processor. Settings that bound no instruction set do not matter.
const CpuLevel* cpu_level_of(const LibrarySettings& settings);
/// Whether the variable of a library bounds its instruction sets.
bool is_bound(std::string_view variable);
bool has_level(const Processor& processor, const CpuLevel& level);

}  // namespace tutti
