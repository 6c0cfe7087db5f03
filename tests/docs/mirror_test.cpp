// Each class of src/sync/ has a test beside it: tests/sync/<folder>/ names what src/sync/<folder>/
// declares, so that a failure is reported near its cause.

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "docs/pages.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Classes that a header declares itself, beside what it only names.
std::vector<std::string> classes_of(const std::string& header) {
  static const std::regex kClass("(?:^|\n)class (\\w+)(?: final)?(?: : [^{;]*)? \\{");
  std::vector<std::string> names;
  for (std::sregex_iterator at(header.begin(), header.end(), kClass), end; at != end; ++at) {
    names.push_back((*at)[1]);
  }
  return names;
}

bool names(const std::string& text, const std::string& name) {
  return std::regex_search(text, std::regex("\\b" + name + "\\b"));
}

/// What of a header the tests do not name: its classes, or where it has none, the header.
std::vector<std::string> unnamed(const std::string& path, const std::string& header,
                                 const std::string& tests) {
  std::vector<std::string> missing;
  const auto classes = classes_of(header);
  for (const auto& name : classes) {
    if (!names(tests, name)) missing.push_back(path + ": " + name);
  }
  if (classes.empty() && tests.find("#include \"" + path + "\"") == std::string::npos) {
    missing.push_back(path);
  }
  return missing;
}

TEST(Mirror, EachClassOfSyncIsNamedByATestBesideIt) {
  const auto src = source_folder() / "src";
  const auto mirror = source_folder() / "tests";
  std::vector<std::string> missing;
  int headers = 0;
  for (const auto& folder : fs::recursive_directory_iterator(src / "sync")) {
    if (!folder.is_directory()) continue;
    std::string tests;
    for (const auto& test :
         fs::directory_iterator(mirror / folder.path().lexically_relative(src))) {
      if (test.is_regular_file()) tests += text_of(test.path());
    }
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".h") continue;
      ++headers;
      const auto path = entry.path().lexically_relative(src).string();
      const auto found = unnamed(path, text_of(entry.path()), tests);
      missing.insert(missing.end(), found.begin(), found.end());
    }
  }
  EXPECT_GT(headers, 30);
  EXPECT_THAT(missing, IsEmpty());
}

TEST(Mirror, AClassThatNoTestNamesIsSaid) {
  const std::string header =
      "class Elsewhere;\nclass Old {\n};\nclass New final : public Old {\n  class Inner {};\n};\n";
  EXPECT_THAT(unnamed("sync/step/new.h", header, "Old old; Newer newer;"),
              ElementsAre("sync/step/new.h: New"));
  EXPECT_THAT(unnamed("sync/step/new.h", header, "Old(), New()"), IsEmpty());
  EXPECT_THAT(unnamed("sync/plan/fusion.h", "int fuse();\n", "#include \"sync/plan/fusion.h\"\n"),
              IsEmpty());
  EXPECT_THAT(unnamed("sync/plan/fusion.h", "int fuse();\n", "fuse();"),
              ElementsAre("sync/plan/fusion.h"));
}

}  // namespace
}  // namespace tutti::test
