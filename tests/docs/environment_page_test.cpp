// docs/environment.md lists exactly the variables that Environment reads, with their meaning.

#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "docs/pages.h"
#include "tutti/environment.h"

namespace tutti {
namespace {

using Row = std::pair<std::string, std::string>;

constexpr const char* kOfCommand = "## Read by the command";

std::vector<Row> rows_of(const std::string& text) {
  const std::regex row_of_table("\\| `([A-Z_]+)` \\| ([^\n]*) \\|\n");
  std::vector<Row> rows;
  for (std::sregex_iterator row(text.begin(), text.end(), row_of_table), end; row != end; ++row)
    rows.emplace_back((*row)[1], (*row)[2]);
  return rows;
}

std::string page() { return text_of(source_folder() / "docs/environment.md"); }

// promise: environment.h#Environment, environment.h#variables
TEST(EnvironmentPage, ListsTheVariablesThatAreRead) {
  std::vector<Row> expected;
  for (const auto& variable : Environment::variables())
    expected.emplace_back(variable.name, variable.meaning);
  EXPECT_THAT(rows_of(page().substr(0, page().find(kOfCommand))),
              testing::UnorderedElementsAreArray(expected));
}

// promise: environment.h#Environment
TEST(EnvironmentPage, ListsWhatTheCommandReadsBesides) {
  const std::regex read("getenv\\(\"([^\"]+)\"");
  std::set<std::string> found;
  for (const char* folder : {"src", "apps", "include"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(source_folder() / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string source = text_of(entry.path());
      for (std::sregex_iterator match(source.begin(), source.end(), read), end; match != end;
           ++match) {
        found.insert((*match)[1]);
        EXPECT_STREQ(folder, "apps")
            << (*match)[1] << " is read in " << entry.path() << ", not by Environment";
      }
    }
  }
  std::set<std::string> listed;
  for (const Row& row : rows_of(page().substr(page().find(kOfCommand)))) listed.insert(row.first);
  EXPECT_EQ(found, listed);
}

}  // namespace
}  // namespace tutti
