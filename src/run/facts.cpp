#include "run/facts.h"

#include <cstddef>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "run/strict_json.h"

namespace tutti {
namespace {

constexpr std::size_t kMostLines = 5;

/// A value of a checkpoint may be anything: plain when short and printable, else quoted.
std::string plain(const std::string& text) {
  const std::string quoted = shown(text);
  return !text.empty() && quoted == '"' + text + '"' ? text : quoted;
}

}  // namespace

std::string facts_diff(const Facts& first, const Facts& second, const FactsSides& sides) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : first) {
    const auto other = second.find(key);
    if (other == second.end())
      lines.push_back(fmt::format("{} is {} {}, not known {}", plain(key), plain(value),
                                  sides.first, sides.second));
    else if (other->second != value)
      lines.push_back(fmt::format("{} is {} {}, {} {}", plain(key), plain(value), sides.first,
                                  plain(other->second), sides.second));
  }
  for (const auto& [key, value] : second)
    if (!first.contains(key))
      lines.push_back(
          fmt::format("{} is not {}, {} {}", plain(key), sides.first, plain(value), sides.second));
  const std::size_t all = lines.size();
  if (all > kMostLines) {
    lines.resize(kMostLines);
    lines.push_back(fmt::format("… and {} more", all - kMostLines));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace tutti
