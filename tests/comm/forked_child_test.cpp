// A child that a worker makes by fork() has all of its objects: ranks are processes.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "job/job_state.h"
#include "support/process_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

struct Left {};

/// How a child leaves the scope that it was made in.
enum class Way { returns, throws };

/// Runs `scope`, in which the worker forks by the call that it is given. In the child that call
/// throws, or is true, and `scope` has to return; the child ends behind `scope`.
void leave_in_child(Way way, const std::function<void(const std::function<bool()>&)>& scope) {
  const pid_t worker = ::getpid();
  const auto fork_child = [&] {
    const pid_t child = ::fork();
    if (child == 0 && way == Way::throws) throw Left();
    if (child == 0) return true;
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return false;
  };
  try {
    scope(fork_child);
  } catch (const Left&) {
  }
  if (::getpid() != worker) ::_exit(0);
}

// promise: errors#children-of-a-worker
TEST(ForkedChild, ThatLeavesAPendingCallDoesNotDoTheWorkersPart) {
  constexpr std::int64_t kCount = 300'000;
  for (const Way way : {Way::returns, Way::throws}) {
    const ProcessOutcome outcome = run_process_ranks(2, [&](const Job& job) {
      const Group group(job);
      const SharedMemory memory = group.allocate(kCount * sizeof(float));
      auto* const x = reinterpret_cast<float*>(memory.data());
      std::fill(x, x + kCount, static_cast<float>(job.rank() + 1));
      leave_in_child(way, [&](const auto& fork_child) {
        Work work = group.start().all_reduce(view(x, kCount), view(x, kCount), Reduction::sum);
        if (job.rank() == 1 && fork_child()) return;
        work.wait();
      });
      group.barrier();
      EXPECT_EQ(std::count(x, x + kCount, 3.0f), kCount);
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

// promise: errors#children-of-a-worker
TEST(ForkedChild, ThatLeavesABusyPeriodDoesNotEndIt) {
  for (const Way way : {Way::returns, Way::throws}) {
    const ProcessOutcome outcome = run_process_ranks(2, [&](const Job& job) {
      const Group group(job);
      leave_in_child(way, [&](const auto& fork_child) {
        const Busy busy = job.busy("evaluate", seconds(30));
        if (job.rank() == 1 && fork_child()) return;
        EXPECT_GT(job.state()->slot(job.rank()).busy_until.load(), 0);
      });
      EXPECT_EQ(job.state()->slot(job.rank()).busy_until.load(), 0);
      group.barrier();
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

// Shared memory is shared with a child too.
// promise: errors#children-of-a-worker
TEST(ForkedChild, WritesToBlocksForAllWorkers) {
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    const Group group(job);
    const SharedMemory memory = group.allocate(100);
    leave_in_child(Way::returns, [&](const auto& fork_child) {
      if (job.rank() == 1 && fork_child()) memory.data()[99] = std::byte{42};
    });
    group.barrier();
    EXPECT_EQ(memory.block(1)[99], std::byte{42});
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: errors#children-of-a-worker, job.h#Job
TEST(ForkedChild, IsRefusedByEveryCall) {
  const ProcessOutcome outcome = run_process_ranks(2, [&](const Job& job) {
    const Group group(job);
    float x = 1;
    leave_in_child(Way::returns, [&](const auto& fork_child) {
      Work work = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum);
      const bool is_child = job.rank() == 1 && fork_child();
      if (!is_child) return work.wait();
      const std::function<void()> calls[] = {
          [&] { static_cast<void>(work.done()); },
          [&] { work.wait(); },
          [&] { group.barrier(); },
          [&] { static_cast<void>(group.start().barrier()); },
          [&] { static_cast<void>(group.split(0, "half")); },
          [&] { static_cast<void>(group.allocate(100)); },
          [&] { static_cast<void>(group.allocate_common(100)); },
          [&] { const Group fresh(job, "fresh"); },
          [&] { const Busy busy = job.busy("evaluate", seconds(1)); },
          [&] { static_cast<void>(job.alive()); },
      };
      for (const auto& call : calls) {
        try {
          call();
          ADD_FAILURE() << "a call of a child was not refused";
        } catch (const Unsupported& e) {
          EXPECT_THAT(e.what(), HasSubstr("rank 1's job is used in a child that the worker made"));
        }
      }
      EXPECT_EQ(job.rank(), 1);  // who the worker is may be asked
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    });
    EXPECT_EQ(x, 2);
    group.barrier();
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
