#include "base/cpu_level.h"

#include <algorithm>
#include <array>

namespace tutti {
namespace {

constexpr const char* kAvx2[] = {"avx2", "fma"};
constexpr const char* kAvx512[] = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"};

// oneDNN has no level below SSE4.1; COMPATIBLE is the one branch of MKL that all processors take.
// AVX512_CORE leaves out what only some processors with AVX-512 have.
constexpr std::array<CpuLevel, 3> kLevels = {{
    {"default", "SSE41", "COMPATIBLE", {}},
    {"avx2", "AVX2", "AVX2", kAvx2},
    {"avx512", "AVX512_CORE", "AVX512", kAvx512},
}};

constexpr const char* kSve128[] = {"sve", "bf16", "sve128"};
constexpr const char* kSve256[] = {"sve", "bf16", "sve256"};
constexpr const char* kArmCompute = "Arm Compute Library";

// libtorch takes its SVE kernels where vectors have just that length, and oneDNN then takes its own
// of that length by itself: its names for SVE are unusable (it compares with "sve_ ## bits").
constexpr std::array<CpuLevel, 3> kArmLevels = {{
    {"default", "ADVANCED_SIMD", "", {}, kArmCompute},
    {"sve128", "", "", kSve128, kArmCompute},
    {"sve256", "", "", kSve256, kArmCompute},
}};

constexpr std::array<std::string_view, 5> kBounds = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
                                                     "DNNL_MAX_CPU_ISA", "MKL_CBWR",
                                                     "MKL_ENABLE_INSTRUCTIONS"};

}  // namespace

LibrarySettings CpuLevel::settings() const {
  LibrarySettings settings = {{"ATEN_CPU_CAPABILITY", std::string(name)},
                              {"ONEDNN_MAX_CPU_ISA", std::string(onednn)},
                              {"MKL_CBWR", std::string(mkl)}};
  std::erase_if(settings, [](const auto& setting) { return setting.second.empty(); });
  return settings;
}

std::span<const CpuLevel> cpu_levels(Architecture architecture) {
  if (architecture == Architecture::aarch64) return kArmLevels;
  return kLevels;
}

const CpuLevel* find_cpu_level(std::string_view name, Architecture architecture) {
  const auto levels = cpu_levels(architecture);
  const auto found = std::ranges::find(levels, name, &CpuLevel::name);
  return found == levels.end() ? nullptr : &*found;
}

const CpuLevel* cpu_level_of(const LibrarySettings& settings) {
  LibrarySettings bounds = settings;
  std::erase_if(bounds, [](const auto& setting) { return !is_bound(setting.first); });
  for (const auto architecture : {Architecture::x86_64, Architecture::aarch64}) {
    for (const CpuLevel& level : cpu_levels(architecture)) {
      if (level.settings() == bounds) return &level;
    }
  }
  return nullptr;
}

bool is_bound(std::string_view variable) { return std::ranges::count(kBounds, variable) > 0; }

bool has_level(const Processor& processor, const CpuLevel& level) {
  return std::ranges::all_of(level.needs,
                             [&](const char* flag) { return processor.flags.contains(flag); });
}

}  // namespace tutti
