#include "job/life/launcher_process.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Processes that do not exist, in a folder of their own. 40 is this one.
class LauncherProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tutti_launcher_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directories(root_ / "proc/sys/kernel/random");
    std::ofstream(root_ / "proc/sys/kernel/random/boot_id") << "b007";
    fs::create_directory_symlink("40", root_ / "proc/self");
  }
  void TearDown() override { fs::remove_all(root_); }
  void add(int number, int parent, long started, const std::string& environment,
           const std::string& name = "worker") const {
    const auto folder = root_ / "proc" / std::to_string(number);
    fs::create_directories(folder);
    std::string zeros;
    for (int field = 5; field < 22; ++field) zeros += "0 ";
    std::ofstream(folder / "stat")
        << fmt::format("{} ({}) S {} {}{} 0 0", number, name, parent, zeros, started);
    std::ofstream(folder / "environ", std::ios::binary) << environment;
  }
  std::string found() const { return find_launcher_process(root_, "RANK").identity; }

  fs::path root_;
};

const std::string kWorker("HOME=/\0RANK=1\0", 14);
const std::string kOther("HOME=/\0NOT_RANK=1\0A=RANK=1\0", 29);

// promise: clusters#how-workers-find-one-another
TEST_F(LauncherProcess, IsTheNearestAboveWithoutTheRank) {
  add(40, 30, 4000, kWorker);
  add(30, 20, 3000, kWorker, "a shell (of) a worker");
  add(20, 10, 2000, kOther, "torchrun");
  add(10, 1, 1000, kOther);
  EXPECT_EQ(found(), "boot b007 process 20 started 2000");
}

TEST_F(LauncherProcess, IsTheParentOfAWorkerThatWasStartedDirectly) {
  add(40, 20, 4000, kWorker);
  add(20, 10, 2000, kOther);
  EXPECT_EQ(found(), "boot b007 process 20 started 2000");
}

// promise: clusters#how-workers-find-one-another
TEST_F(LauncherProcess, OneThatMayNotBeReadIsTaken) {
  add(40, 20, 4000, kWorker);
  add(20, 10, 2000, kWorker, "slurmstepd");
  fs::remove(root_ / "proc/20/environ");
  add(10, 1, 1000, kWorker);
  EXPECT_EQ(found(), "boot b007 process 20 started 2000");
}

TEST_F(LauncherProcess, TheFirstProcessOfAContainerIsTakenWhateverItsEnvironment) {
  add(40, 1, 4000, kWorker);
  add(1, 0, 1, kWorker);
  EXPECT_EQ(found(), "boot b007 process 1 started 1");
}

TEST_F(LauncherProcess, WithoutProcThereIsStillAText) {
  EXPECT_THAT(found(), AllOf(HasSubstr("boot"), HasSubstr("process")));
}

TEST(LauncherProcessOfThisMachine, HasANumberAndATime) {
  const auto [number, text] = find_launcher_process("/", "NO_SUCH_VARIABLE_RANK");
  EXPECT_EQ(number, std::to_string(::getppid()));
  EXPECT_THAT(text, HasSubstr(fmt::format("process {} started ", ::getppid())));
  EXPECT_GT(text.size(), text.find("started ") + 8);
  EXPECT_EQ(text.find("started 0"), std::string::npos);
}

}  // namespace
}  // namespace tutti::test
