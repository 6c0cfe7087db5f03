// docs/design.md is a map: each path on it leads somewhere, each name on it is one of the sources,
// and each sentence on a step names a function that is there.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
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

/// The files of src/, include/ and apps/.
const std::vector<std::string>& sources() {
  static const std::vector<std::string> kSources = [] {
    std::vector<std::string> texts;
    for (const char* folder : {"src", "include", "apps"}) {
      for (const auto& entry : fs::recursive_directory_iterator(source_folder() / folder)) {
        if (entry.is_regular_file()) texts.push_back(text_of(entry.path()));
      }
    }
    return texts;
  }();
  return kSources;
}

Words words_of_sources() {
  Words words;
  for (const auto& text : sources()) add_words(text, words);
  return words;
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

/// The source that defines the class has the function.
bool has_function(const std::vector<std::string>& texts, const std::string& type,
                  const std::string& function) {
  const std::regex definition("(class|struct) " + type + "( final)?( : [^;{]*)? \\{");
  return std::ranges::any_of(texts, [&](const std::string& text) {
    return text.find(" " + function + "(") != std::string::npos &&
           std::regex_search(text, definition);
  });
}

/// Sentences that name no function, and functions that no source has.
std::vector<std::string> unfounded(const std::string& section,
                                   const std::vector<std::string>& texts) {
  const auto prose = std::regex_replace(
      section, std::regex("!\\[[^\\]]*\\]\\([^)]*\\)|\\n\\d\\. \\*\\*[^*]*\\*\\*"), "");
  const std::regex sentence("[^\\s](?:[^.]|\\.(?!\\s|$))*\\.(?=\\s|$)");
  const std::regex function("`(\\w+)::(\\w+)\\(\\)`");
  std::vector<std::string> found;
  for (std::sregex_iterator one(prose.begin(), prose.end(), sentence), end; one != end; ++one) {
    const auto text = one->str();
    std::sregex_iterator named(text.begin(), text.end(), function);
    if (named == end) found.push_back(text);
    for (; named != end; ++named) {
      if (!has_function(texts, (*named)[1], (*named)[2])) found.push_back(named->str());
    }
  }
  return found;
}

TEST(DesignPage, EachSentenceOnAStepNamesAFunctionThatIsThere) {
  const auto page = text_of(source_folder() / "docs" / "design.md");
  const auto begin = page.find('\n', page.find("\n## A step\n") + 1);
  const auto section = page.substr(begin, page.find("\n## ", begin) - begin);
  EXPECT_GT(section.size(), 3000u);
  EXPECT_THAT(unfounded(section, sources()), IsEmpty());
}

TEST(DesignPage, WhatNamesNoFunctionIsFound) {
  const std::vector<std::string> texts = {"class A : public B {\n  void run();\n};",
                                          "struct C {\n  void stop();\n};",
                                          "class D;\nvoid run();"};
  EXPECT_THAT(
      unfounded("`A::run()` goes\non. It ends.\n1. **So.** `C::stop()` and `D::run()`.\n", texts),
      ElementsAre("It ends.", "`D::run()`"));
}

TEST(DesignPage, IsReadInAQuarterOfAnHour) {
  std::istringstream words(text_of(source_folder() / "docs" / "design.md"));
  EXPECT_LE(std::distance(std::istream_iterator<std::string>(words), {}), 3500);
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
