#pragma once

// Options as keys and values: what workers compare, and what is printed at the start.

#include <string>
#include <utility>
#include <vector>

namespace tutti {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// ", key value, key value …"
inline std::string text_of(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += ", " + key + ' ' + value;
  return text;
}

}  // namespace tutti
