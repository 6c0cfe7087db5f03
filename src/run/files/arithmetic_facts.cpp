#include "run/files/arithmetic_facts.h"

#include <fmt/format.h>

namespace tutti {
namespace {

constexpr const char* kTorch = "torch";
constexpr const char* kInstructionSet = "instruction set";
constexpr const char* kProcessor = "processor";
constexpr const char* kMkl = "MKL";

/// Whether MKL computes with the level's branch. On processors that are not Intel's it takes AUTO
/// instead of all branches but COMPATIBLE, and chooses by the processor.
bool mkl_obeys(const Arithmetic& arithmetic, const CpuLevel& level) {
  if (arithmetic.mkl.empty()) return true;
  if (!arithmetic.mkl_branch.empty()) return arithmetic.mkl_branch == level.mkl;
  return arithmetic.processor.vendor == "GenuineIntel" || level.mkl == "COMPATIBLE";
}

std::string processor_of(const Arithmetic& arithmetic) {
  const CpuLevel* level = cpu_level_of(arithmetic.settings);
  if (level == nullptr || !level->unbounded.empty()) {
    return fmt::format("{} with {}", type_of(arithmetic.processor),
                       extensions_of(arithmetic.processor));
  }
  if (mkl_obeys(arithmetic, *level)) return fmt::format("any of level {}", level->name);
  return fmt::format("{}, by which MKL chooses", type_of(arithmetic.processor));
}

std::string mkl_of(const Arithmetic& arithmetic) {
  if (arithmetic.mkl.empty()) return "none";
  if (arithmetic.mkl_branch.empty()) return arithmetic.mkl;
  return fmt::format("{}, branch {}", arithmetic.mkl, arithmetic.mkl_branch);
}

}  // namespace

std::string instruction_set_of(const Arithmetic& arithmetic) {
  std::string text = arithmetic.instruction_set;
  for (const auto& [name, value] : arithmetic.settings) {
    if (name != "ATEN_CPU_CAPABILITY") text += fmt::format(", {}={}", name, value);
  }
  return text;
}

RunFingerprint compared_facts(const Arithmetic& arithmetic) {
  return {{kTorch, arithmetic.torch},
          {kInstructionSet, instruction_set_of(arithmetic)},
          {kProcessor, processor_of(arithmetic)},
          {kMkl, mkl_of(arithmetic)},
          {"oneDNN", arithmetic.onednn.empty() ? "none" : arithmetic.onednn},
          {"C library", arithmetic.c_library}};
}

RunFingerprint remedies_of_facts(Architecture architecture) {
  const std::string install = "all workers need the same libraries: bits depend on their versions";
  std::string level = "bits depend on it: give all workers the same environment";
  if (architecture == Architecture::aarch64) {
    level +=
        ", and processors of one type: no level of `tutti run --cpu` bounds Arm Compute Library";
  } else {
    level +=
        "; `tutti run --cpu avx2` levels processors of several kinds, --cpu default those of "
        "several vendors";
  }
  return {{kTorch, install},        {"oneDNN", install}, {"C library", install},
          {kInstructionSet, level}, {kProcessor, level}, {kMkl, level}};
}

RunFingerprint noted_facts(const Arithmetic& arithmetic) {
  const auto known = [](const std::string& text) { return text.empty() ? "none" : text; };
  return {
      {kTorch, fmt::format("{} with MKL {}, oneDNN {}, C library {}", arithmetic.torch,
                           known(arithmetic.mkl), known(arithmetic.onednn), arithmetic.c_library)},
      {kInstructionSet, instruction_set_of(arithmetic)},
      {kProcessor, description_of(arithmetic.processor)}};
}

std::string noted_differences(const RunFingerprint& then, RunFingerprint now) {
  RunFingerprint known = then;
  std::erase_if(known, [&](const auto& fact) {
    const auto found = now.find(fact.first);
    return found == now.end() || found->second.starts_with(fact.second + ' ');
  });
  std::erase_if(now, [&](const auto& fact) { return !known.contains(fact.first); });
  return facts_diff(known, now);
}

}  // namespace tutti
