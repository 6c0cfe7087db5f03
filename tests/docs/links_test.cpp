// What the pages point to exists, and the programs on them are those that the tests run.

#include <gmock/gmock.h>

#include <regex>
#include <sstream>

#include "docs/pages.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> pages() {
  std::vector<fs::path> found = {source_folder() / "README.md", source_folder() / "CONTRIBUTING.md",
                                 source_folder() / "CHANGELOG.md"};
  for (const auto& entry : fs::directory_iterator(source_folder() / "docs"))
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  return found;
}

/// A page without its blocks of code, in which `[&](int x)` is no link.
std::string prose_of(const fs::path& page) {
  std::istringstream lines(text_of(page));
  std::string prose;
  bool in_code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) in_code = !in_code;
    if (!in_code) prose += line + "\n";
  }
  return prose;
}

TEST(Pages, LinksLeadSomewhere) {
  const std::regex link("\\]\\(([^)#:]+)(#[^)]*)?\\)");
  int links = 0;
  for (const fs::path& page : pages()) {
    const std::string text = prose_of(page);
    for (std::sregex_iterator match(text.begin(), text.end(), link), end; match != end; ++match) {
      ++links;
      EXPECT_TRUE(fs::exists(page.parent_path() / (*match)[1].str()))
          << page << " links to " << (*match)[1];
    }
  }
  EXPECT_GT(links, 10);
}

TEST(Pages, LinksLeadToHeadings) {
  const std::regex link("\\]\\(([^)#:]*\\.md)?#([^)]*)\\)");
  int links = 0;
  for (const fs::path& page : pages()) {
    const std::string text = prose_of(page);
    for (std::sregex_iterator match(text.begin(), text.end(), link), end; match != end; ++match) {
      ++links;
      const auto target =
          (*match)[1].matched ? page.parent_path() / (*match)[1].str() : fs::path(page);
      if (!fs::exists(target)) continue;  // named by LinksLeadSomewhere
      EXPECT_TRUE(headings_of(text_of(target)).contains((*match)[2]))
          << page << " links to " << (*match)[0];
    }
  }
  EXPECT_GT(links, 50);
}

TEST(Pages, HeadingsHaveTheNamesThatLinksUse) {
  EXPECT_THAT(headings_of("# Two `DataParallel`s\n\n## When, and why?\n```\n# code\n```\n"),
              testing::ElementsAre("two-dataparallels", "when-and-why"));
}

TEST(Pages, EachPageOfDocsIsInTheList) {
  const std::string list = text_of(source_folder() / "docs/README.md");
  for (const auto& entry : fs::directory_iterator(source_folder() / "docs")) {
    const std::string name = entry.path().filename();
    if (entry.path().extension() != ".md" || name == "README.md") continue;
    EXPECT_THAT(list, testing::HasSubstr("[" + name + "]"));
  }
}

/// `page` shows the whole of `file`, after a comment that names it.
void expect_shows(const std::string& page, const std::string& file) {
  const std::string text = text_of(source_folder() / page);
  const std::string begin = "<!-- " + file + " -->\n```cpp\n";
  const std::size_t at = text.find(begin);
  ASSERT_NE(at, std::string::npos) << page << " does not show " << file;
  const std::size_t start = at + begin.size();
  EXPECT_EQ(text.substr(start, text.find("```", start) - start), text_of(source_folder() / file))
      << "copy " << file << " into " << page;
}

TEST(Readme, ProgramIsTheOneThatTestsRun) {
  expect_shows("README.md", "tests/examples/programs/readme.cpp");
}

TEST(Readme, IsReadInAMinute) { EXPECT_LE(text_of(source_folder() / "README.md").size(), 6144u); }

TEST(StartPage, ProgramIsTheFirstExample) {
  expect_shows("docs/start.md", "examples/01_first_steps.cpp");
}

TEST(LinksPage, ProgramWithALinkOfItsOwnIsTheExample) {
  expect_shows("docs/links.md", "examples/07_own_link_gloo.cpp");
}

TEST(OperationsPage, ProgramOfAGridIsTheExample) {
  expect_shows("docs/operations.md", "examples/09_grid.cpp");
}

// promise: group#a-program-without-libtorch
TEST(GroupPage, ProgramIsTheOneThatIsBuiltAgainstTheInstalledCore) {
  expect_shows("docs/group.md", "tests/install/core/main.cpp");
}

}  // namespace
}  // namespace tutti
