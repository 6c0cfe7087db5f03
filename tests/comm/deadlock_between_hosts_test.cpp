// Workers of several hosts that wait for one another, and those that only seem to. The proof on one
// host, case by case, is deadlock_test.cpp's.

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/on_hosts.h"
#include "job/job_state.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// promise: clusters#several-hosts, errors#workers-that-wait-for-one-another
TEST(DeadlockBetweenHosts, WorkersInDifferentOperationsAreToldLongBeforeTheDeadline) {
  const auto begin = Clock::now();
  const auto outcome = try_thread_ranks(
      2,
      [](const Job& job) {
        const Group a(job, "a");
        const Group b(job, "b");
        (job.rank() == 0 ? a : b).barrier({.label = "only one", .deadline = seconds(60)});
      },
      on({{0}, {1}}));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcome.text(rank),
                AllOf(HasSubstr("workers wait for one another: rank 0 waits for rank 1 in barrier"),
                      HasSubstr("group \"a\""), HasSubstr("rank 1 waits for rank 0 in barrier"),
                      HasSubstr("group \"b\"")))
        << rank;
  }
  EXPECT_LT(Clock::now() - begin, seconds(30));
}

/// Half of the workers make a call that the others do not make: each of them lacks two.
// promise: clusters#several-hosts
TEST(DeadlockBetweenHosts, AllOfFourWorkersOfTwoHostsAreTold) {
  const auto outcome = try_thread_ranks(
      4,
      [](const Job& job) {
        const Group all(job);
        const Group evaluation(job, "evaluation");
        (job.rank() % 2 == 0 ? all : evaluation).barrier({.deadline = seconds(60)});
      },
      on({{0, 1}, {2, 3}}));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("workers wait for one another")) << rank;
  }
}

// promise: clusters#several-hosts
TEST(DeadlockBetweenHosts, ACircleOfThreeHostsIsProvenWhileOthersGoOn) {
  std::atomic<int> told{0};
  const auto outcome = try_thread_ranks(
      5,
      [&](const Job& job) {
        const int rank = job.rank();
        if (rank >= 3) {
          const Group others(job, std::vector<int>{3, 4}, "others");
          for (float go_on = 1; go_on > 0;) {
            go_on = told < 3 ? 1 : 0;
            others.all_reduce(view(&go_on, 1), Reduction::min);
            std::this_thread::sleep_for(milliseconds(1));
          }
          return;
        }
        // In the same order on all three.
        std::optional<Group> one, two, three;
        if (rank != 2) one.emplace(job, std::vector<int>{0, 1}, "one");
        if (rank != 0) two.emplace(job, std::vector<int>{1, 2}, "two");
        if (rank != 1) three.emplace(job, std::vector<int>{0, 2}, "three");
        try {
          (rank == 0 ? one : rank == 1 ? two : three)->barrier({.deadline = seconds(60)});
        } catch (...) {
          ++told;
          throw;
        }
        ADD_FAILURE();
      },
      on({{0, 3}, {1, 4}, {2}}));
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 0 waits for rank 1 in barrier")) << rank;
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 2 waits for rank 0 in barrier")) << rank;
  }
  EXPECT_EQ(outcome.text(3), "");
  EXPECT_EQ(outcome.text(4), "");
}

/// Each host waits for what the other one sends.
TEST(DeadlockBetweenHosts, HostsWhoseMessagesDoNotArriveDoNotWaitForOneAnother) {
  const auto options = on({{0, 1}, {2, 3}});
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        const Group group(job);
        std::vector<float> x(1 << 20, 1);
        const auto all_reduce = [&](milliseconds deadline) {
          group.all_reduce(view(x.data(), std::ssize(x)), Reduction::sum, {.deadline = deadline});
        };
        all_reduce(seconds(60));  // makes the link
        group.barrier();
        if (job.rank() == 0) {
          options.world->hosts()->silence_links(0);
          options.world->hosts()->silence_links(1);
        }
        group.barrier();
        all_reduce(milliseconds(2500));
      },
      options);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), AllOf(HasSubstr("not reached"), Not(HasSubstr("one another"))))
        << rank;
  }
}

/// Rank 0 waits for a worker of another host, which waits for one that is busy.
TEST(DeadlockBetweenHosts, WhoWaitsForABusyWorkerOfAnotherHostIsExcused) {
  run_thread_ranks(
      3,
      [](const Job& job) {
        std::optional<Group> one, two;
        if (job.rank() <= 1) one.emplace(job, std::vector<int>{0, 1}, "one");
        if (job.rank() >= 1) two.emplace(job, std::vector<int>{1, 2}, "two");
        Group(job).barrier();
        if (job.rank() == 2) {
          const Busy busy = job.busy("evaluate", seconds(60));
          std::this_thread::sleep_for(milliseconds(2500));
        }
        if (job.rank() >= 1) two->barrier({.deadline = milliseconds(1200)});
        if (job.rank() <= 1) one->barrier({.deadline = milliseconds(1200)});
      },
      on({{0}, {1}, {2}}));
}

TEST(DeadlockBetweenHosts, ATimeoutTellsWhatTheLateWorkerOfAnotherHostWaitsFor) {
  const auto outcome = try_thread_ranks(
      3,
      [](const Job& job) {
        std::optional<Group> one, two;
        if (job.rank() <= 1) one.emplace(job, std::vector<int>{0, 1}, "one");
        if (job.rank() >= 1) two.emplace(job, std::vector<int>{1, 2}, "two");
        Group(job).barrier();
        if (job.rank() == 2) std::this_thread::sleep_for(seconds(3));
        if (job.rank() >= 1) two->barrier({.deadline = seconds(60)});
        if (job.rank() <= 1) one->barrier({.deadline = seconds(2)});
      },
      on({{0}, {1}, {2}}));
  EXPECT_THAT(outcome.text(0), AllOf(HasSubstr("rank 1 has not reached barrier"),
                                     HasSubstr("rank 1 waits for rank 2 in barrier")));
}

}  // namespace
}  // namespace tutti::test
