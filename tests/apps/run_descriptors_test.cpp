// What `tutti run` does with a low limit on open files.

#include <gmock/gmock.h>
#include <sys/resource.h>

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

TEST(RunDescriptors, LauncherTakesWhatTheHardLimitAllowsAndLeavesTheWorkersTheirs) {
  // 24 workers need some 100 descriptors in the launcher, and few in each worker.
  const LowLimit limit(60);
  const auto run = run_script({"-n", "24"}, "echo limit=$(ulimit -S -n)");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(numbers_after(run.out, "limit"), std::vector<int>(24, 60));
}

}  // namespace
}  // namespace tutti
