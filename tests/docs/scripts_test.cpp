// The scripts of script/ tell how they are used, and set nothing up to do so.

#include <cstdio>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>

#include "docs/pages.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Called {
  int status;
  std::string output;
};

Called call(const std::string& command) {
  Called called{};
  auto* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen() failed"};
  char part[4096];
  for (std::size_t size = 0; (size = fread(part, 1, sizeof part, pipe)) > 0;)
    called.output.append(part, size);
  called.status = pclose(pipe);
  return called;
}

TEST(Scripts, HelpSaysHowEachIsCalled) {
  int scripts = 0;
  for (const auto& entry : fs::directory_iterator(source_folder() / "script")) {
    const auto name = "script/" + entry.path().filename().string();
    if (name == "script/lib.sh") continue;
    ++scripts;
    const auto called = call(entry.path().string() + " --help");
    EXPECT_EQ(called.status, 0) << name;
    EXPECT_THAT(called.output, AllOf(HasSubstr(name + " ["), Not(HasSubstr("shellcheck")),
                                     Not(HasSubstr("Setting up"))));
  }
  EXPECT_GE(scripts, 4);
}

TEST(Scripts, BenchRefusesAWrongOptionBeforeAnythingIsSetUp) {
  const auto called = call((source_folder() / "script/bench").string() + " --onyl step");
  EXPECT_NE(called.status, 0);
  EXPECT_THAT(called.output, AllOf(HasSubstr("--onyl"), Not(HasSubstr("Setting up"))));
}

TEST(Scripts, CompatRefusesWrongArgumentsBeforeAnythingIsSetUp) {
  for (const std::string wrong : {"--al", "2.15", "1.13.0", "2.15.0 2.14.0", "-R",
                                  "--only base_tests", "--only torch_tests --all"}) {
    const auto called = call((source_folder() / "script/compat").string() + " " + wrong);
    EXPECT_NE(called.status, 0) << wrong;
    EXPECT_THAT(called.output,
                AllOf(HasSubstr("usage: script/compat ["), Not(HasSubstr("Setting up"))))
        << wrong;
  }
}

TEST(Scripts, GpuRefusesWrongArgumentsBeforeAnythingIsSetUp) {
  for (const std::string wrong : {"", "pak", "pack --device cuda", "dp --build build", "pack a b",
                                  "dp /nowhere/at/all", "dp --device"}) {
    const auto called = call((source_folder() / "script/gpu").string() + " " + wrong);
    EXPECT_NE(called.status, 0) << wrong;
    EXPECT_THAT(called.output, AllOf(HasSubstr("script/gpu "), Not(HasSubstr("Setting up"))))
        << wrong;
  }
}

// findings-3: A5
TEST(Scripts, ArmRefusesATestThatItDoesNotHaveBeforeAnythingIsSetUp) {
  const auto called = call((source_folder() / "script/arm").string() + " torch_tests");
  EXPECT_NE(called.status, 0);
  EXPECT_THAT(called.output, AllOf(HasSubstr("usage: script/arm ["), Not(HasSubstr("Setting up"))));
}

}  // namespace
}  // namespace tutti::test
