// docs/design.md is a map: each path on it leads somewhere, and each name on it is one of the
// sources.

#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "docs/pages.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Words = std::set<std::string>;

void add_words(const std::string& text, Words& words) {
  std::string word;
  for (const char c : text + ' ') {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
    } else if (!word.empty()) {
      words.insert(word);
      word.clear();
    }
  }
}

/// Every word of src/, include/ and apps/.
const Words& words_of_sources() {
  static const Words kWords = [] {
    Words words;
    for (const char* folder : {"src", "include", "apps"}) {
      for (const auto& entry : fs::recursive_directory_iterator(source_folder() / folder)) {
        if (entry.is_regular_file()) add_words(text_of(entry.path()), words);
      }
    }
    return words;
  }();
  return kWords;
}

/// What a page has between backticks and what of it is nowhere: paths, and names of C++.
std::vector<std::string> lost(const std::string& page, const Words& words) {
  static const std::regex kCode("`([^`\n]+)`");
  static const std::regex kPath("(src|include|apps|tests|docs|script|bench|examples)/[\\w./-]*");
  static const std::regex kName("\\w+(::\\w+)*(\\(\\))?");
  std::vector<std::string> found;
  for (std::sregex_iterator at(page.begin(), page.end(), kCode), end; at != end; ++at) {
    const auto code = (*at)[1].str();
    if (std::regex_match(code, kPath)) {
      if (!fs::exists(source_folder() / code)) found.push_back(code);
    } else if (std::regex_match(code, kName)) {
      Words parts;
      add_words(code, parts);
      for (const auto& part : parts) {
        if (!words.contains(part)) found.push_back(code + ": " + part);
      }
    }
  }
  return found;
}

TEST(DesignPage, EachPathAndNameOnItIsThere) {
  const auto page = text_of(source_folder() / "docs" / "design.md");
  EXPECT_THAT(lost(page, words_of_sources()), IsEmpty())
      << "docs/design.md names what the sources do not have: a map follows the land";
}

TEST(DesignPage, ShowsItsPicture) {
  const auto page = text_of(source_folder() / "docs" / "design.md");
  EXPECT_THAT(page, ::testing::HasSubstr("](images/life_of_a_step.svg)"));
  EXPECT_TRUE(fs::exists(source_folder() / "docs" / "images" / "life_of_a_step.svg"));
}

TEST(DesignPage, WhatIsNowhereIsNamed) {
  EXPECT_THAT(lost("`src/base/check.h` `src/base/gone.h` `Plan::hash()` `Plan::gone()` `a + gone`",
                   {"Plan", "hash"}),
              ElementsAre("src/base/gone.h", "Plan::gone(): gone"));
}

}  // namespace
}  // namespace tutti::test
