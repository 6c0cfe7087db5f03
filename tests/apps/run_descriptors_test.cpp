// What `tutti run` does with a low limit on open files, and with descriptors that it inherited.

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "support/running_command.h"

namespace tutti {
namespace {

/// The soft limit on descriptors, inherited by what is started in the meantime.
class LowLimit {
 public:
  explicit LowLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = limit;
    setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~LowLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  LowLimit(const LowLimit&) = delete;
  LowLimit& operator=(const LowLimit&) = delete;

 private:
  rlimit before_{};
};

// promise: launcher#what-a-worker-gets
TEST(RunDescriptors, LauncherTakesWhatTheHardLimitAllowsAndLeavesTheWorkersTheirs) {
  // 24 workers need some 100 descriptors in the launcher, and few in each worker.
  const LowLimit limit(60);
  const auto run = run_script({"-n", "24"}, "echo limit=$(ulimit -S -n)");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(numbers_after(run.out, "limit"), std::vector<int>(24, 60));
}

// promise: launcher#what-a-worker-gets
TEST(RunDescriptors, WorkersGetNeitherLogsNorWhatTheLauncherInherited) {
  // 0, 1, 2, the socket, and the folder that ls itself has open.
  for (const std::vector<int>& absent : {std::vector<int>{}, {SYS_close_range}}) {
    const TemporaryFolder folder;
    const auto run = run_script(
        {"-n", "3", "--log", folder.file("logs")}, "ls /proc/self/fd | wc -l",
        {.absent_calls = absent,
         .before = {"/bin/sh", "-c", "exec 8> /dev/null 9< /dev/null; exec \"$@\"", "sh"}});
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(lines_of(run.out), testing::UnorderedElementsAre("[0] 5", "[1] 5", "[2] 5"));
  }
}

// promise: launcher#what-a-worker-gets
TEST(RunDescriptors, WhatTheLauncherInheritedStaysOpenThereUntilTheRunHasEnded) {
  // As a lock would be: `exec 9> lock; flock 9; tutti run …`
  const auto run =
      run_script({"-n", "1"}, "[ -e /proc/$PPID/fd/9 ] && echo held",
                 {.before = {"/bin/sh", "-c", "exec 9< /dev/null; exec \"$@\"", "sh"}});
  EXPECT_EQ(run.out, "[0] held\n");
}

}  // namespace
}  // namespace tutti
