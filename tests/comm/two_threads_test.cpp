// Workers that use groups from several threads, each group from one.

#include <gmock/gmock.h>

#include <thread>

#include "support/process_ranks.h"
#include "tutti/error.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

TEST(TwoThreads, thread_that_first_comes_later_makes_no_deadlock_of_what_others_wait_for) {
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    const Group a(job, "a");
    const Group b(job, "b");
    if (job.rank() == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(2000));  // four times what a proof takes
        b.barrier();
      });
      a.barrier();
      other.join();
    } else {
      b.barrier();
      a.barrier();
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(TwoThreads, deadlock_is_told_at_once_again_when_the_other_thread_has_ended) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer's own thread is one that might still come";
#endif
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    const Group a(job, "a");
    const Group b(job, "b");
    std::thread([] {}).join();
    EXPECT_THROW((job.rank() == 0 ? a : b).barrier(), Mismatch);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
