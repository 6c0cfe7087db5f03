// What the others get when a member dies, stops or gives up: ranks are processes.

#include <unistd.h>

#include <atomic>
#include <csignal>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "job/job_state.h"
#include "job/wait.h"
#include "support/log_capture.h"
#include "support/process_ranks.h"
#include "support/shared_between_processes.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// What the ranks of a test tell each other beside the group.
struct Shared {
  std::atomic<int> pid[8];
  std::atomic<int> notices;
  std::atomic<int> ready;  ///< ranks that are done with what comes before the death
  std::atomic<std::int64_t> killed_at;
  std::atomic<std::int64_t> longest;  ///< ns from the kill to the last error
};

using SharedPage = SharedBetweenProcesses<Shared>;

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

void end_myself(const SharedPage& shared) {
  shared->killed_at = now();
  ::raise(SIGKILL);
}

void note_delay(const SharedPage& shared) {
  const std::int64_t delay = now() - shared->killed_at;
  std::int64_t longest = shared->longest;
  while (longest < delay && !shared->longest.compare_exchange_weak(longest, delay)) {
  }
}

/// All but `dead` ended well, and that one by SIGKILL.
void expect_one_killed(const ProcessOutcome& outcome, int dead) {
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    if (static_cast<int>(rank) == dead) {
      EXPECT_EQ(outcome.ranks[rank].signal, SIGKILL) << outcome.describe();
    } else {
      EXPECT_TRUE(outcome.ranks[rank].good()) << outcome.describe();
    }
  }
}

struct DeathCase {
  const char* name;
  std::int64_t count;
  bool shared;
  bool polls;
};

class Death : public ::testing::TestWithParam<DeathCase> {};
INSTANTIATE_TEST_SUITE_P(Ways, Death,
                         ::testing::Values(DeathCase{"small", 10, false, false},
                                           DeathCase{"staged", 700'000, false, false},
                                           DeathCase{"in_place", 700'000, true, false},
                                           DeathCase{"small_polled", 10, false, true},
                                           DeathCase{"staged_polled", 700'000, false, true}),
                         [](const auto& of) { return of.param.name; });

// promise: error.h#PeerLost, group#when-something-is-wrong, group.h#Group
TEST_P(Death, OthersKnowWithinASecondAndGoOnWithoutIt) {
  const DeathCase way = GetParam();
  constexpr int kDead = 1;
  // The promise is a second; a loaded machine may miss it now and then, a time-out always would.
  constexpr int kAttempts = 4;
  std::int64_t longest = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const SharedPage shared;
    const ProcessOutcome outcome = run_process_ranks(3, [&](Job job) {
      const Group group(job);
      const SharedMemory memory =
          group.allocate(static_cast<std::size_t>(way.count) * sizeof(float));
      std::vector<float> own(static_cast<std::size_t>(way.count), 1.0f);
      float* const x = way.shared ? reinterpret_cast<float*>(memory.data()) : own.data();
      const auto call = [&] {
        Work work = group.start().all_reduce(view(x, way.count), view(x, way.count), Reduction::max,
                                             {.label = "weight"});
        while (way.polls && !work.done()) pause_cpu();
        work.wait();
      };
      for (int i = 0; i < 20; ++i) call();
      ++shared->ready;
      if (job.rank() == kDead) {
        while (shared->ready < 3) pause_cpu();
        end_myself(shared);
      }
      for (int repeat = 0; repeat < 2; ++repeat) {
        try {
          call();
          ADD_FAILURE() << "a dead rank took part";
        } catch (const PeerLost& e) {
          if (repeat == 0) note_delay(shared);
          EXPECT_EQ(e.rank(), kDead);
          EXPECT_THAT(e.what(), HasSubstr("rank 1 ended before reaching all-reduce max float32"));
          EXPECT_THAT(e.what(), HasSubstr("\"weight\", call 23 of group \"world\""));
        }
      }
      const Group rest(job, {0, 2}, "rest");
      int one = 1;
      rest.all_reduce(view(&one, 1), Reduction::sum);
      EXPECT_EQ(one, 2);
    });
    expect_one_killed(outcome, kDead);
    ASSERT_FALSE(outcome.blames.empty());
    for (const Blame& blame : outcome.blames) EXPECT_EQ(blame.culprit, kDead);
    longest = shared->longest;
    if (longest < 1'000'000'000) return;
  }
  ADD_FAILURE() << "it took " << longest / 1'000'000 << " ms";
}

/// Killed at any moment of a stream of calls, large ones half done included.
// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(GroupFailure, DeathAtAnyMomentEndsInPeerLost) {
  for (const int delay_us : {300, 1'700, 4'100, 9'000}) {
    const SharedPage shared;
    const ProcessOutcome outcome = run_process_ranks(3, [&](Job job) {
      const Group group(job);
      std::vector<float> x(400'000, 1.0f);
      shared->pid[job.rank()] = ::getpid();
      group.barrier();
      const auto begin = Clock::now();
      try {
        while (true) {
          group.all_reduce(view(x.data(), 400'000), Reduction::max);
          group.all_reduce(view(x.data(), 40), Reduction::max);
          // The other processes of the machine decide where in a call of rank 2's this falls.
          if (job.rank() == 0 && shared->killed_at == 0 &&
              Clock::now() - begin > std::chrono::microseconds(delay_us)) {
            shared->killed_at = now();
            ::kill(shared->pid[2], SIGKILL);
          }
        }
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.rank(), 2);
      }
    });
    expect_one_killed(outcome, 2);
  }
}

// promise: errors#when-a-process-has-ended, group.h#Group, group.h#deadline
TEST(GroupFailure, AStoppedRankIsNoticedThenTimedOutThenWelcomeAgain) {
  const SharedPage shared;
  ProcessOptions options;
  options.job.deadline = milliseconds(1500);
  options.job.stall_notice = milliseconds(300);
  const ProcessOutcome outcome = run_process_ranks(
      3,
      [&](Job job) {
        const Group group(job);
        shared->pid[job.rank()] = ::getpid();
        group.barrier();
        {
          const LogCapture log;
          if (job.rank() == 2) ::raise(SIGSTOP);
          try {
            group.barrier({.label = "epoch"});
            ADD_FAILURE() << "a stopped rank took part";
          } catch (const Timeout& e) {
            if (job.rank() != 2) {
              EXPECT_THAT(e.what(), HasSubstr("rank 2 has not reached barrier \"epoch\""));
              // One of those that wait speaks for all.
              shared->notices += log.count("rank 2 has not reached barrier \"epoch\"");
            } else {
              // Told by what the others left behind.
              EXPECT_THAT(e.what(), HasSubstr("rank 2 has not reached barrier \"epoch\""));
              EXPECT_THAT(e.what(), HasSubstr("(found by rank "));
            }
          }
        }
        if (job.rank() != 2) {
          const Group two(job, {0, 1}, "both waited");
          two.barrier({.deadline = seconds(30)});
          if (job.rank() == 0) ::kill(shared->pid[2], SIGCONT);
        }
        // Long enough for a rank that has just been woken.
        const Group fresh(job);
        int one = 1;
        fresh.all_reduce(view(&one, 1), Reduction::sum, {.deadline = seconds(30)});
        EXPECT_EQ(one, 3);
      },
      options);
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  EXPECT_GE(shared->notices, 1);
}

// promise: errors#deadlines, group#when-something-is-wrong, group.h#deadline
TEST(GroupFailure, ACallsOwnDeadlineComesBeforeTheJobs) {
  const ProcessOutcome outcome = run_process_ranks(2, [](Job job) {
    const Group group(job);
    const Group order(job, "order");
    if (job.rank() == 0) {
      const auto begin = Clock::now();
      EXPECT_THROW(group.barrier({.deadline = milliseconds(200)}), Timeout);
      EXPECT_LT(Clock::now() - begin, seconds(20));
      float x = 0;
      EXPECT_THROW(group.all_reduce(view(&x, 1), Reduction::sum), Timeout);
    }
    order.barrier();
    if (job.rank() == 1) {
      EXPECT_THROW(group.barrier(), Timeout);
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: group.h#wait
TEST(GroupFailure, APolledCallHasADeadlineToo) {
  const ProcessOutcome outcome = run_process_ranks(2, [](Job job) {
    const Group group(job);
    const Group order(job, "order");
    if (job.rank() == 0) {
      Work work = group.start().barrier({.deadline = milliseconds(200)});
      while (!work.done()) pause_cpu();
      EXPECT_THROW(work.wait(), Timeout);
    }
    order.barrier();
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(GroupFailure, AMemberThatLeftInOrderIsMissedToo) {
  const ProcessOutcome outcome = run_process_ranks(2, [](Job job) {
    const Group group(job);
    group.barrier();
    if (job.rank() == 1) return;
    try {
      group.barrier();
      ADD_FAILURE() << "a rank that left took part";
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.rank(), 1);
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: error.h#rank
TEST(GroupFailure, ALostMemberOfSomeIsNamedByItsRankInTheJob) {
  const SharedPage shared;
  const ProcessOutcome outcome = run_process_ranks(3, [&](Job job) {
    if (job.rank() == 0) return;
    const Group group(job, {1, 2}, "some");
    group.barrier();
    if (job.rank() == 2) end_myself(shared);
    try {
      group.barrier();
      ADD_FAILURE() << "a dead rank took part";
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.rank(), 2);
      EXPECT_THAT(e.what(), HasSubstr("rank 2 ended"));
    }
  });
  expect_one_killed(outcome, 2);
}

// promise: group.h#Group
TEST(GroupFailure, DeathBeforeAGroupIsMadeIsPeerLost) {
  const SharedPage shared;
  const ProcessOutcome outcome = run_process_ranks(3, [&](Job job) {
    const Group world(job);
    world.barrier();
    if (job.rank() == 0) end_myself(shared);
    EXPECT_THROW(Group(job, "next"), PeerLost);
    EXPECT_THROW(world.allocate(100), PeerLost);
  });
  expect_one_killed(outcome, 0);
}

}  // namespace
}  // namespace tutti::test
