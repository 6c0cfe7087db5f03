// The check against a real control group: without it, the process that goes beyond is killed.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>

#include "memory/arena.h"
#include "memory/memory_need.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kLimit = 48 << 20;

bool write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

/// A control group of its own below the root of the hierarchy, with a memory limit.
class MemoryGroup {
 public:
  MemoryGroup() {
    const std::string name = "tutti_test_" + std::to_string(::getpid());
    for (const char* root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const bool first = fs::exists(fs::path(root) / "memory.limit_in_bytes");
      const char* limit = first ? "memory.limit_in_bytes" : "memory.max";
      std::error_code error;
      if (!fs::create_directory(fs::path(root) / name, error)) continue;
      folder_ = fs::path(root) / name;
      if (write_file(folder_ / limit, std::to_string(kLimit))) {
        never_swaps_ =
            first ? write_file(folder_ / "memory.memsw.limit_in_bytes", std::to_string(kLimit)) ||
                        write_file(folder_ / "memory.swappiness", "0")
                  : write_file(folder_ / "memory.swap.max", "0");
        return;
      }
      fs::remove(folder_, error);
      folder_.clear();
    }
  }
  ~MemoryGroup() {
    std::error_code error;
    for (int i = 0; i < 1000 && !folder_.empty() && !fs::remove(folder_, error) && error; ++i)
      ::usleep(1000);
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool exists() const { return !folder_.empty(); }
  /// Otherwise the group may use swap beyond its limit.
  bool never_swaps() const { return never_swaps_; }
  std::string name() const { return folder_.filename(); }
  bool join() const { return write_file(folder_ / "cgroup.procs", std::to_string(::getpid())); }

 private:
  fs::path folder_;
  bool never_swaps_ = false;
};

bool machine_has_swap() {
  std::ifstream swaps("/proc/swaps");  // a heading, then a line for each
  std::string line;
  return std::getline(swaps, line) && std::getline(swaps, line) && !line.empty();
}

/// Runs `body` in a child inside the group. Its exit status; 100 when it could not join; minus the
/// signal that ended it.
template <class Body>
int run_inside(const MemoryGroup& group, Body&& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!group.join()) ::_exit(100);
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class Cgroup : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef TUTTI_SANITIZED
    GTEST_SKIP() << "a sanitizer's shadow memory does not fit the small group";
#endif
    if (!group_.exists()) GTEST_SKIP() << "no memory control group can be made here (not root?)";
    if (run_inside(group_, [] { return 0; }) != 0)
      GTEST_SKIP() << "a process cannot be moved into a memory control group here";
  }
  MemoryGroup group_;
};

// promise: group#when-something-is-wrong
TEST_F(Cgroup, NeedBeyondItsLimitIsRefusedByName) {
  const int status = run_inside(group_, [&] {
    const auto system = host_system();
    const std::string refusal =
        refuse_memory(*system, {.bytes_per_worker = 20 << 20, .workers = 4, .what = "gradients"});
    EXPECT_THAT(refusal, ::testing::HasSubstr("gradients needs 80 MiB (20 MiB for each of 4"));
    EXPECT_THAT(refusal, ::testing::HasSubstr(group_.name()));
    EXPECT_THAT(refusal, ::testing::HasSubstr("left of 48 MiB"));
    EXPECT_EQ(refuse_memory(*system, {.bytes_per_worker = 5 << 20, .workers = 4, .what = "x"}), "");
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Cgroup, SharedMemoryInUseCountsAgainstTheNextNeed) {
  const int status = run_inside(group_, [&] {
    const auto system = host_system();
    const MemoryNeed need{.bytes_per_worker = 24 << 20, .workers = 1, .what = "x"};
    EXPECT_EQ(refuse_memory(*system, need), "");
    const Arena taken = Arena::create(*system, "test", 28 << 20);
    touch_pages(taken.data(), taken.bytes());
    EXPECT_NE(refuse_memory(*system, need), "");
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(status, 0);
}

/// The negative control: what the check is there to prevent.
// promise: group#when-something-is-wrong
TEST_F(Cgroup, WithoutTheCheckTheProcessIsKilled) {
  if (!group_.never_swaps() && machine_has_swap())
    GTEST_SKIP() << "this machine has swap, and a control group cannot be kept from it here";
  const int status = run_inside(group_, [&] {
    const Arena taken = Arena::create(*host_system(), "test", 96 << 20);
    touch_pages(taken.data(), taken.bytes());
    return 0;
  });
  EXPECT_EQ(status, -SIGKILL);
}

}  // namespace
}  // namespace tutti::test
