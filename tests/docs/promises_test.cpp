// Each sentence of a page, and each paragraph of a header's comments, has a test that would fail or
// is listed as saying nothing that could: docs/promises.md.

#include "docs/promises.h"

#include <gmock/gmock.h>

#include <regex>

#include "docs/pages.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Every test of GoogleTest, those of ctest besides, and the scripts.
std::vector<std::string> all_tests() {
  std::vector<std::string> tests;
  const std::regex test("(?:^|\n)(?:TYPED_)?TEST(?:_[FP])?\\(\\s*(\\w+),\\s*(\\w+)\\)");
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string source = text_of(entry.path());
    for (std::sregex_iterator match(source.begin(), source.end(), test), end; match != end; ++match)
      tests.push_back((*match)[1].str() + "." + (*match)[2].str());
  }
  const std::string install = text_of(source_folder() / "tests/install/CMakeLists.txt");
  const std::regex installed("\n *(?:add_[a-z]+_test\\(|add_test\\(NAME install\\.)([a-z_]+)");
  for (std::sregex_iterator match(install.begin(), install.end(), installed), end; match != end;
       ++match)
    tests.push_back("install." + (*match)[1].str());
  for (const auto& entry : fs::directory_iterator(source_folder() / "script"))
    tests.push_back("script/" + entry.path().filename().string());
  return tests;
}

QuotedText read(const std::string& path) {
  const std::string text = text_of(source_folder() / path);
  return fs::path(path).extension() == ".h" ? read_header(text) : read_page(text);
}

TEST(Promises, EachOneHasATestThatIsThere) {
  const std::vector<std::string> tests = all_tests();
  const auto pages = read_promises(text_of(source_folder() / "docs/promises.md"));
  EXPECT_GE(pages.size(), 3);
  for (const PromisesOfPage& page : pages)
    for (const std::string& complaint : complaints(page, read(page.path), tests))
      ADD_FAILURE() << complaint;
}

TEST(Promises, AllKindsOfTestsAreFound) {
  const std::vector<std::string> tests = all_tests();
  EXPECT_THAT(
      tests,
      testing::IsSupersetOf(
          {"Promises.AllKindsOfTestsAreFound", "install.core", "install.unknown_component",
           "install.files", "script/exactness", "AllReduceTyped.EveryDefinedReductionIsTheModels",
           "EnvironmentTest.reads_each_variable", "LateMember.OfATimedOutCallIsToldSo"}));
}

constexpr const char* kPage =
    "# Sums\n<!-- sums.cpp -->\n\nA sum is the same on all. It takes\nlong (12 s here).\n\n"
    "| call | gives |\n|---|---|\n| `add` | a sum |\n\n- one\n- two\n\n```\ncode is not "
    "read.\n```\n";

std::vector<std::string> parts_of(const QuotedText& page) {
  std::vector<std::string> parts;
  for (const auto& part : page.parts)
    parts.push_back(page.text.substr(part.begin, part.end - part.begin));
  return parts;
}

TEST(Promises, PagesAreReadBySentencesItemsAndRows) {
  EXPECT_THAT(parts_of(read_page(kPage)),
              ElementsAre("A sum is the same on all.", "It takes long (12 s here).",
                          "| `add` | a sum |", "- one", "- two"));
}

TEST(Promises, HeadersAreReadByParagraphsOfTheirComments) {
  EXPECT_THAT(parts_of(read_header(
                  "#pragma once\n\n// Sums. Of\n// numbers.\n//\n// Threads: any.\n"
                  "\nclass Sum {\n  /// Not negative.\n  int count = 0;  ///< of all\n};\n")),
              ElementsAre("Sums. Of numbers.", "Threads: any.", "Not negative."));
}

std::vector<std::string> complaints_of(const std::string& promises) {
  const auto pages = read_promises(
      "# Tests\n\nwords\n\n## docs/sums.md\n\n| promise | test |\n|---|---|\n" + promises);
  EXPECT_EQ(pages.size(), 1);
  return complaints(pages.at(0), read_page(kPage), {"Sum.Same", "Sum.Rows"});
}

constexpr const char* kGood =
    "| the same on all | `Sum.Same`, `Sum.Rows` |\n| `add` \\| a sum | `Sum.Rows` |\n\n- 12 s "
    "here\n- - "
    "one\n- - two\n";

TEST(Promises, ThatAreAllHeldHaveNoComplaint) { EXPECT_THAT(complaints_of(kGood), IsEmpty()); }

TEST(Promises, OfASentenceThatHasChangedAreFound) {
  EXPECT_THAT(complaints_of(kGood + std::string("| the same on each | `Sum.Same` |\n")),
              ElementsAre(HasSubstr("does not stand in docs/sums.md: \"the same on each\"")));
}

TEST(Promises, OfWordsThatStandTwiceAreFound) {
  EXPECT_THAT(complaints_of(kGood + std::string("| sum | `Sum.Same` |\n")),
              ElementsAre(HasSubstr("stands twice in docs/sums.md: \"sum\"")));
}

TEST(Promises, WithoutALineAreFound) {
  EXPECT_THAT(
      complaints_of("| the same on all | `Sum.Same` |\n| a sum | `Sum.Rows` |\n- - two\n"),
      ElementsAre(HasSubstr("no line for what docs/sums.md says: \"It takes long (12 s here).\""),
                  HasSubstr("says: \"- one\"")));
}

TEST(Promises, WhoseTestIsGoneAreFound) {
  EXPECT_THAT(complaints_of(kGood + std::string("| on all | `Sum.Gone` |\n| on all. | |\n")),
              ElementsAre(HasSubstr("not there: Sum.Gone, for \"on all\""),
                          HasSubstr("(no test is named)")));
}

}  // namespace
}  // namespace tutti
