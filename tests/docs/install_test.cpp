// What an installation without libtorch must not have: headers that read libtorch's.

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include <gmock/gmock.h>

#include "docs/pages.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Whether this header reads one of libtorch's, itself or through others of ours.
bool needs_libtorch(const fs::path& header) {
  const auto text = text_of(header);
  if (std::regex_search(text, std::regex("#include <(torch|ATen|c10)/"))) return true;
  static const std::regex kOurs("#include \"(tutti/[a-z_]+\\.h)\"");
  for (std::sregex_iterator at(text.begin(), text.end(), kOurs), end; at != end; ++at) {
    if (needs_libtorch(source_folder() / "include" / (*at)[1].str())) return true;
  }
  return false;
}

TEST(Install, WithoutLibtorchLeavesOutTheHeadersThatReadIt) {
  const auto rules = text_of(source_folder() / "cmake" / "TuttiInstall.cmake");
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(source_folder() / "include" / "tutti")) {
    const auto name = entry.path().filename().string();
    if (!needs_libtorch(entry.path())) {
      EXPECT_THAT(rules, ::testing::Not(HasSubstr("PATTERN " + name + " EXCLUDE")));
      continue;
    }
    found.insert(name);
    EXPECT_THAT(rules, HasSubstr("PATTERN " + name + " EXCLUDE"));
  }
  EXPECT_THAT(found, ::testing::IsSupersetOf({"trainer.h", "tutti.h", "distributed_sampler.h"}));
}

/// The README goes from one to the other. What the target makes: tests/install/target_test.cmake.
TEST(Install, TheDemoBuildsWhatIsInstalled) {
  EXPECT_THAT(text_of(source_folder() / "script" / "demo"),
              HasSubstr("\nbuild release tutti_installed "));
}

}  // namespace
}  // namespace tutti::test
