#pragma once

// What stands in house_exceptions.txt: it is against a rule today, and the list may only shrink.

#include <map>
#include <sstream>
#include <string>

#include "docs/pages.h"

namespace tutti::test {

/// How many, by "kind where". An include is against the order of folders; the other kinds are
/// sizes.
inline std::map<std::string, std::size_t> house_exceptions(bool of_includes) {
  std::map<std::string, std::size_t> found;
  std::istringstream lines(text_of(source_folder() / "tests/docs/house_exceptions.txt"));
  for (std::string line; std::getline(lines, line);) {
    const auto space = line.rfind(' ');
    if (line.starts_with('#') || space == std::string::npos) continue;
    if (line.starts_with("include ") == of_includes) {
      found[line.substr(0, space)] = std::stoul(line.substr(space));
    }
  }
  return found;
}

}  // namespace tutti::test
