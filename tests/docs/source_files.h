#pragma once

// The sources of src/, apps/ and include/, and what they include, for tests of the layout.

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "docs/pages.h"

namespace tutti::test {

struct SourceFile {
  std::string name;  ///< "src/sync/plan/plan.cpp"
  std::string text;
  std::string folder() const { return std::filesystem::path(name).parent_path().string(); }
};

/// Ordered by name.
inline std::vector<SourceFile> source_files() {
  std::vector<SourceFile> all;
  for (const auto* top : {"src", "apps", "include"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() / top)) {
      const auto extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      all.push_back(
          {entry.path().lexically_relative(source_folder()).string(), text_of(entry.path())});
    }
  }
  std::ranges::sort(all, {}, &SourceFile::name);
  return all;
}

/// What a source includes of this repository, as written.
inline std::vector<std::string> includes_of(const std::string& text) {
  static const std::regex kInclude("(?:^|\n)#include \"([^\"]+)\"");
  std::vector<std::string> includes;
  for (std::sregex_iterator at(text.begin(), text.end(), kInclude), end; at != end; ++at) {
    includes.push_back((*at)[1]);
  }
  return includes;
}

}  // namespace tutti::test
