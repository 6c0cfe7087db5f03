// docs/environment.md lists exactly the variables that Environment reads, with their meaning.

#include <gmock/gmock.h>

#include <regex>

#include "docs/pages.h"
#include "tutti/environment.h"

namespace tutti {
namespace {

using Row = std::pair<std::string, std::string>;

TEST(EnvironmentPage, ListsTheVariablesThatAreRead) {
  const std::string page = text_of(source_folder() / "docs/environment.md");
  const std::regex row_of_table("\\| `([A-Z_]+)` \\| ([^\n]*) \\|\n");
  std::vector<Row> rows;
  for (std::sregex_iterator row(page.begin(), page.end(), row_of_table), end; row != end; ++row)
    rows.emplace_back((*row)[1], (*row)[2]);

  std::vector<Row> expected;
  for (const auto& variable : Environment::variables())
    expected.emplace_back(variable.name, variable.meaning);
  EXPECT_THAT(rows, testing::UnorderedElementsAreArray(expected));
}

TEST(EnvironmentPage, NoSourceReadsAVariableThatEnvironmentDoesNotList) {
  const std::regex read("getenv\\(\"([^\"]+)\"");
  const std::vector<std::string> allowed = {"PATH"};  // of the command, to find a program
  for (const char* folder : {"src", "apps", "include"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(source_folder() / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string source = text_of(entry.path());
      for (std::sregex_iterator match(source.begin(), source.end(), read), end; match != end;
           ++match)
        EXPECT_THAT(allowed, testing::Contains((*match)[1].str())) << entry.path();
    }
  }
}

}  // namespace
}  // namespace tutti
