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

std::string facts_diff(const Facts& checkpoint, const Facts& run) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : checkpoint) {
    const auto here = run.find(key);
    if (here == run.end())
      lines.push_back(
          fmt::format("{} is {} in the checkpoint, not known here", plain(key), plain(value)));
    else if (here->second != value)
      lines.push_back(fmt::format("{} is {} in the checkpoint, {} here", plain(key), plain(value),
                                  plain(here->second)));
  }
  for (const auto& [key, value] : run)
    if (!checkpoint.contains(key))
      lines.push_back(
          fmt::format("{} is not in the checkpoint, {} here", plain(key), plain(value)));
  const std::size_t all = lines.size();
  if (all > kMostLines) {
    lines.resize(kMostLines);
    lines.push_back(fmt::format("… and {} more", all - kMostLines));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace tutti
