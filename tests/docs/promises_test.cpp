// Tests name promises that pages make.

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

}  // namespace
}  // namespace tutti::test
