#pragma once

// The repository's pages, as text. TUTTI_SOURCE is its folder.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace tutti {

inline std::filesystem::path source_folder() { return TUTTI_SOURCE; }

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  EXPECT_TRUE(stream) << "cannot read " << file;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// The name of a heading in a link: "Two `DataParallel`s" is two-dataparallels.
inline std::string slug_of(const std::string& heading) {
  std::string slug;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || byte >= 0x80) {
      slug += static_cast<char>(std::tolower(byte));
    } else if (c == ' ') {
      slug += '-';
    }
  }
  return slug;
}

inline std::set<std::string> headings_of(const std::string& page) {
  std::set<std::string> found;
  std::istringstream lines(page);
  bool in_code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) in_code = !in_code;
    if (in_code || !line.starts_with('#')) continue;
    found.insert(slug_of(line.substr(std::min(line.find(' ') + 1, line.size()))));
  }
  return found;
}

}  // namespace tutti
