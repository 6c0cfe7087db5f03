// Tests name promises that pages make, and the changes of tests/mutations.tsv, which break some on
// purpose, apply to the sources.

#include <map>
#include <regex>
#include <string>

#include "docs/pages.h"

namespace tutti::test {
namespace {

/// The headings of the page, or the words in the code of the header.
std::set<std::string> anchors_of(const std::string& page) {
  const auto root = source_folder();
  if (page == "readme") return headings_of(text_of(root / "README.md"));
  if (!page.ends_with(".h")) return headings_of(text_of(root / "docs" / (page + ".md")));
  const auto text = text_of(root / "include/tutti" / page);
  const auto code = std::regex_replace(text, std::regex("//[^\n]*"), "");
  const std::regex word("\\w+");
  return {std::sregex_token_iterator(code.begin(), code.end(), word), {}};
}

TEST(Promises, NameAHeadingOfAPageOrANameOfAHeaderAboveATest) {
  const std::regex comment("(?:^|\n)// promise: ([^\n]*)(?=\n([^\n]*))");
  const std::regex promise("([\\w.]+)#([^\\s,#]+)(, |$)");
  std::map<std::string, std::set<std::string>> anchors;  // by page
  int promises = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(source_folder() / "tests")) {
    if (!entry.path().string().ends_with("_test.cpp")) continue;
    const auto text = text_of(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), comment), end; at != end; ++at) {
      const auto list = (*at)[1].str();
      EXPECT_TRUE(std::regex_search((*at)[2].str(), std::regex("^(// promise: |(TYPED_)?TEST)")))
          << entry.path() << ": no test is below the promise " << list;
      EXPECT_EQ(std::regex_replace(list, promise, ""), "") << entry.path() << ": not page#anchor";
      for (std::sregex_iterator one(list.begin(), list.end(), promise); one != end; ++one) {
        ++promises;
        const auto page = (*one)[1].str();
        if (!anchors.contains(page)) anchors[page] = anchors_of(page);
        EXPECT_TRUE(anchors[page].contains((*one)[2])) << entry.path() << " names " << one->str();
      }
    }
  }
  EXPECT_GT(promises, 1000);
}

/// In a cell of mutations.tsv \n is a new line, \t a tab, \\ a backslash.
std::string cell_text(const std::string& cell) {
  std::string text;
  for (std::size_t i = 0; i < cell.size(); ++i) {
    const char c = cell[i];
    const char next = c == '\\' ? cell.at(++i) : c;
    text += c != '\\' ? c : next == 'n' ? '\n' : next == 't' ? '\t' : next;
  }
  return text;
}

TEST(Mutations, ApplyToTheSourcesAndNameTests) {
  std::istringstream lines(text_of(source_folder() / "tests/mutations.tsv"));
  const std::regex row("([^\t]+)\t([^\t]+)\t([^\t]*)\t(\\w+_tests):([\\w.*:/?]+)\t([^\t]+)");
  int mutations = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::smatch cells;
    ASSERT_TRUE(std::regex_match(line, cells, row)) << line;
    const auto text = text_of(source_folder() / cells[1].str());
    const auto old = cell_text(cells[2]);
    EXPECT_TRUE(text.find(old) != std::string::npos && text.find(old) == text.rfind(old))
        << "tests/mutations.tsv: not once in " << cells[1] << ": " << old;
    EXPECT_NE(old, cell_text(cells[3])) << line;
    ++mutations;
  }
  EXPECT_GE(mutations, 60);
}

}  // namespace
}  // namespace tutti::test
