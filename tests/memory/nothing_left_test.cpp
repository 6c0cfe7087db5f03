// However workers end, no file, segment or mapping is left.

#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/process_ranks.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.insert(entry.path().filename());
  return names;
}

/// Names of other programs, and of the folders of tests that run meanwhile, come and go.
std::set<std::string> tutti_names_in(const fs::path& folder) {
  std::set<std::string> names = names_in(folder);
  std::erase_if(names, [](const std::string& name) {
    return name.find("tutti") == std::string::npos || name.starts_with("tutti-test-");
  });
  return names;
}

/// Descriptors and mappings of this process that belong to memory files of Tutti.
int memory_held_here() {
  int held = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    if (fs::read_symlink(entry.path(), error).string().find("memfd:tutti") != std::string::npos)
      ++held;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:tutti") != std::string::npos) ++held;
  return held;
}

// promise: group#when-something-is-wrong, clusters#on-one-host
TEST(NothingLeft, AfterSigkillOfAllWorkers) {
  const std::array<fs::path, 2> folders = {"/dev/shm", fs::temp_directory_path()};
  const std::array before = {tutti_names_in(folders[0]), tutti_names_in(folders[1])};
  const int held_before = memory_held_here();
  const ProcessOutcome outcome = run_process_ranks(3, [](Job job) {
    const Group group(job);
    const SharedMemory memory = group.allocate(10 << 20);
    if (memory_held_here() < 3) ::_exit(3);  // the search below would find what is left
    group.barrier();
    // Named files, had there been any, would be there now.
    ::raise(SIGKILL);
  });
  for (const RankEnd& rank : outcome.ranks) EXPECT_EQ(rank.signal, SIGKILL) << outcome.describe();
  for (std::size_t i = 0; i < folders.size(); ++i)
    for (const std::string& name : tutti_names_in(folders[i]))
      EXPECT_TRUE(before[i].contains(name)) << folders[i] / name;
  EXPECT_EQ(memory_held_here(), held_before);
}

TEST(NothingLeft, DescriptorsAreClosedOnceAllHaveMappedTheMemory) {
  const ProcessOutcome outcome = run_process_ranks(2, [](Job job) {
    const Group group(job);
    group.barrier();
    const auto open = names_in("/proc/self/fd").size();
    {
      const Group another(job, "another");
      const SharedMemory memory = another.allocate(1 << 20);
      another.barrier();
      EXPECT_EQ(names_in("/proc/self/fd").size(), open);
    }
    EXPECT_EQ(names_in("/proc/self/fd").size(), open);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
