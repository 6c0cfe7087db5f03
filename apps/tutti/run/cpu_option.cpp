#include "apps/tutti/run/cpu_option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>

#include "apps/tutti/text/refusal.h"

namespace tutti::command {
namespace {

constexpr const char* kNative = "native";

}  // namespace

std::vector<std::string> levels_of(const Processor& processor, Architecture architecture) {
  std::vector<std::string> names;
  for (const CpuLevel& level : cpu_levels(architecture))
    if (has_level(processor, level)) names.emplace_back(level.name);
  return names;
}

std::string cpu_option_values(Architecture architecture) {
  std::string text;
  for (const CpuLevel& level : cpu_levels(architecture))
    text += fmt::format("{}{}", text.empty() ? "" : ", ", level.name);
  return fmt::format("{} or {}", text, kNative);
}

LibrarySettings settings_for(const std::string& cpu, const Processor& processor,
                             const std::vector<std::string>& inherited, Architecture architecture) {
  if (cpu.empty()) return {};
  const CpuLevel* level = find_cpu_level(cpu, architecture);
  if (level == nullptr && cpu != kNative)
    throw Refusal(kUsageStatus,
                  fmt::format("--cpu {}: must be {}", cpu, cpu_option_values(architecture)));
  if (level != nullptr && !has_level(processor, *level))
    throw Refusal(kUsageStatus,
                  fmt::format("--cpu {}: this processor ({}) has {}", cpu, type_of(processor),
                              fmt::join(levels_of(processor, architecture), ", ")));
  LibrarySettings settings = level != nullptr ? level->settings() : LibrarySettings();
  for (const std::string& variable : inherited) {
    const std::size_t equals = std::min(variable.find('='), variable.size());
    const std::string name = variable.substr(0, equals);
    const std::string value = variable.substr(std::min(equals + 1, variable.size()));
    if (value.empty() || !is_bound(name)) continue;
    const auto own = settings.find(name);
    if (own == settings.end() || own->second != value)
      throw Refusal(kUsageStatus,
                    fmt::format("--cpu {}: the environment has {}, which is something else; unset "
                                "it, or leave --cpu out to have workers take it as it is",
                                cpu, variable));
  }
  return settings;
}

}  // namespace tutti::command
