// Calls that were started and are polled for, or are under way while their thread waits for
// something else: ranks are threads.

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/local/control_arena.h"
#include "job/job_state.h"
#include "support/log_capture.h"
#include "support/thread_ranks.h"
#include "support/wrapped_system.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

void sleep_until_true(const std::function<bool()>& reached) {
  const auto end = Clock::now() + seconds(60);
  while (!reached()) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// promise: group#when-something-is-wrong, group.h#done
TEST(PolledCall, NoticesADeathAtTheNextPollHoweverRareTheyAre) {
  ThreadOptions options;
  options.world = std::make_shared<ThreadWorld>(2);
  std::atomic<bool> over{false};
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        if (job.rank() == 1) {
          options.world->kill(1);
          sleep_until_true([&] { return over.load(); });
          return;
        }
        Work work = group.start().barrier();
        EXPECT_FALSE(work.done());
        sleep_until_true([&] { return job.alive().size() == 1; });
        std::this_thread::sleep_for(milliseconds(20));
        EXPECT_TRUE(work.done());
        try {
          work.wait();
          ADD_FAILURE() << "a dead rank took part";
        } catch (const PeerLost& e) {
          EXPECT_EQ(e.rank(), 1);
        }
        over = true;
      },
      options);
}

// promise: group#when-something-is-wrong
TEST(PolledCall, HasItsDeadlineFromTheFirstPollOnHoweverRareTheyAre) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    const Group order(job, "order");
    if (job.rank() == 0) {
      Work work = group.start().barrier({.label = "epoch", .deadline = milliseconds(100)});
      EXPECT_FALSE(work.done());
      std::this_thread::sleep_for(milliseconds(150));
      EXPECT_TRUE(work.done());
      try {
        work.wait();
        ADD_FAILURE() << "nobody else came";
      } catch (const Timeout& e) {
        EXPECT_THAT(e.what(), HasSubstr("rank 1 has not reached barrier \"epoch\""));
      }
    }
    order.barrier();
  });
}

// A minute between two polls may be one in which this process, or all of them, did not run.
// promise: errors#deadlines, group#when-something-is-wrong
TEST(PolledCall, CountsAtMostFiveSecondsBetweenTwoPolls) {
  const auto world = std::make_shared<ThreadWorld>(2);
  std::atomic<bool> over{false};
  const auto run = [&](int rank) {
    const auto clock = std::make_shared<SettableClock>(std::make_shared<ThreadSystem>(world, rank));
    const Job job(std::make_shared<JobState>(
        Identity{rank, 2}, clock, world->thread_rendezvous().rendezvous(rank), JobOptions{}));
    const Group group(job);
    if (rank == 1) return sleep_until_true([&] { return over.load(); });
    Work work = group.start().barrier({.deadline = seconds(28)});
    EXPECT_FALSE(work.done());
    for (int polls = 1; polls <= 5; ++polls) {
      clock->forward(seconds(60));
      EXPECT_FALSE(work.done()) << 5 * polls << " s count";
    }
    clock->forward(seconds(60));
    EXPECT_TRUE(work.done()) << "30 s count";
    EXPECT_THROW(work.wait(), Timeout);
    over = true;
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

// promise: group#when-something-is-wrong
TEST(PolledCall, ExcusesABusyWorkerAndThenSaysWhoIsLate) {
  ThreadOptions options;
  options.job.stall_notice = milliseconds(50);
  const LogCapture log;
  std::atomic<int> phase{0};
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        if (job.rank() == 1) {
          {
            const Busy busy = job.busy("evaluate", seconds(60));
            phase = 1;
            sleep_until_true([&] { return phase == 2; });
          }
          group.barrier();
          sleep_until_true([&] { return phase == 3; });
          return;
        }
        sleep_until_true([&] { return phase == 1; });
        Work work = group.start().barrier({.deadline = milliseconds(150)});
        const auto end = Clock::now() + milliseconds(500);
        while (Clock::now() < end) {
          ASSERT_FALSE(work.done());
          std::this_thread::sleep_for(milliseconds(5));
        }
        phase = 2;
        EXPECT_NO_THROW(work.wait());
        Work next = group.start().barrier({.label = "next", .deadline = milliseconds(300)});
        while (!next.done()) std::this_thread::sleep_for(milliseconds(5));
        EXPECT_THROW(next.wait(), Timeout);
        phase = 3;
      },
      options);
  EXPECT_GE(log.count("rank 1 has not reached barrier \"next\""), 1);
}

// The place of a call is free once all have finished the call that had it: here nobody else does.
// promise: group#waiting-and-what-started-means
TEST(StartedCall, ThatFindsNoPlaceWaitsUnderItsOwnDeadline) {
  for (const int lanes : {1, 2, 3}) {
    std::atomic<bool> over{false};
    run_thread_ranks(2, [&](const Job& job) {
      const Group group(job, "world", {.lanes = lanes});
      std::vector<Work> works;
      for (int i = 0; i < lanes * (kRing - 1); ++i) works.push_back(group.start().barrier());
      if (job.rank() == 0) {
        for (Work& work : works) work.wait();
        std::vector<Work> last_places(static_cast<std::size_t>(lanes));
        for (Work& work : last_places) work = group.start().barrier();
        const auto begin = Clock::now();
        EXPECT_THROW(static_cast<void>(group.start().barrier({.deadline = milliseconds(100)})),
                     Timeout);
        EXPECT_LT(Clock::now() - begin, seconds(30)) << "the job's deadline is a minute";
        over = true;
      }
      sleep_until_true([&] { return over.load(); });
    });
  }
}

/// What a thread waits for while its all-reduce is under way; done by both ranks.
using Elsewhere = std::function<void(const Job&, const Group&)>;

class StartedCallElsewhere : public ::testing::TestWithParam<std::pair<const char*, Elsewhere>> {};
INSTANTIATE_TEST_SUITE_P(
    Waits, StartedCallElsewhere,
    ::testing::Values(
        std::pair<const char*, Elsewhere>{"barrier",
                                          [](const Job&, const Group& other) { other.barrier(); }},
        std::pair<const char*, Elsewhere>{"polled",
                                          [](const Job&, const Group& other) {
                                            std::vector<float> y(100'000, 1);
                                            Work work = other.start().all_reduce(
                                                view(y.data(), 100'000), view(y.data(), 100'000),
                                                Reduction::sum);
                                            work.wait();
                                          }},
        std::pair<const char*, Elsewhere>{
            "new_group", [](const Job& job, const Group&) { const Group fresh(job, "fresh"); }},
        std::pair<const char*, Elsewhere>{
            "allocate",
            [](const Job&, const Group& other) { static_cast<void>(other.allocate(100)); }}),
    [](const auto& of) { return of.param.first; });

// Rank 1 comes to the other wait only when rank 0 has done its part of the call before it.
// promise: group#waiting-and-what-started-means, group.h#Work
TEST_P(StartedCallElsewhere, MakesProgressWhateverItsSize) {
  constexpr std::int64_t kMost = 600'000;
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job, "first");
    const Group other(job, "second");
    const SharedMemory memory = group.allocate(kMost * sizeof(float));
    for (const std::int64_t count : {std::int64_t{100}, std::int64_t{10'000}, kMost}) {
      for (const bool in_place : {false, true}) {
        std::vector<float> own(static_cast<std::size_t>(count));
        float* const x = in_place ? reinterpret_cast<float*>(memory.data()) : own.data();
        std::fill(x, x + count, static_cast<float>(job.rank() + 1));
        if (job.rank() == 0) {
          Work work = group.start().all_reduce(view(x, count), view(x, count), Reduction::sum);
          GetParam().second(job, other);
          work.wait();
        } else {
          group.all_reduce(view(x, count), Reduction::sum);
          GetParam().second(job, other);
        }
        ASSERT_EQ(std::count(x, x + count, 3.0f), count);
      }
    }
  });
}

constexpr std::int64_t kSize = 300'000;

// A thread takes its own further only, and hands one over with its Work.
// promise: group#waiting-and-what-started-means
TEST(StartedCall, MayBeWaitedForByAnotherThread) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job, "first");
    const Group other(job, "second");
    std::vector<float> x(kSize);
    for (int round = 0; round < 5; ++round) {
      std::fill(x.begin(), x.end(), static_cast<float>(job.rank() + 1));
      Work work =
          group.start().all_reduce(view(x.data(), kSize), view(x.data(), kSize), Reduction::sum);
      std::thread waiter([&] { work.wait(); });
      other.barrier();
      waiter.join();
      ASSERT_EQ(std::count(x.begin(), x.end(), 3.0f), kSize);
    }
  });
}

}  // namespace
}  // namespace tutti::test
