#include "run/files/run_fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "run/files/strict_json.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxLines = 5;

/// A value of a checkpoint may be anything: plain when short and printable, else quoted.
std::string plain(const std::string& text) {
  const std::string quoted = shown(text);
  return !text.empty() && quoted == '"' + text + '"' ? text : quoted;
}

/// Cuts two long values that begin alike to what comes from the part on in which they differ.
std::pair<std::string, std::string> parted(const std::string& first, const std::string& second) {
  constexpr std::size_t kShort = 60;
  if (std::max(first.size(), second.size()) <= kShort) return {first, second};
  const auto differ = static_cast<std::size_t>(
      std::mismatch(first.begin(), first.end(), second.begin(), second.end()).first -
      first.begin());
  const auto comma = differ == 0 ? std::string::npos : first.rfind(", ", differ - 1);
  if (comma == std::string::npos) return {first, second};
  return {first.substr(comma + 2), second.substr(std::min(comma + 2, second.size()))};
}

}  // namespace

std::string facts_diff(const RunFingerprint& first, const RunFingerprint& second,
                       const FactsSides& sides) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : first) {
    const auto other = second.find(key);
    if (other == second.end()) {
      lines.push_back(fmt::format("{} is {} {}, not set {}", plain(key), plain(value), sides.first,
                                  sides.second));
    } else if (other->second != value) {
      const auto [one, another] = parted(value, other->second);
      lines.push_back(fmt::format("{} is {} {}, {} {}", plain(key), plain(one), sides.first,
                                  plain(another), sides.second));
    }
  }
  for (const auto& [key, value] : second)
    if (!first.contains(key))
      lines.push_back(fmt::format("{} is not set {}, {} {}", plain(key), sides.first, plain(value),
                                  sides.second));
  const std::size_t all = lines.size();
  if (all > kMaxLines) {
    lines.resize(kMaxLines);
    lines.push_back(fmt::format("… and {} more", all - kMaxLines));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace tutti
