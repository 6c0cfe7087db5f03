#pragma once

// The repository's pages, as text. TUTTI_SOURCE is its folder.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
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

}  // namespace tutti
