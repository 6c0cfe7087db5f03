#include "job/deadlock.h"

#include <gmock/gmock.h>

#include <thread>

#include "arrivals.h"
#include "base/helper_thread.h"
#include "job/wait.h"
#include "support/process_ranks.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

/// Polls until `rank` has looked `times` more times at what it waits for, all in the same wait.
void poll_until_looked(const Job& job, int rank, int times) {
  NoticeView last = read(job.state()->slot(rank).notice);
  for (int seen = 0; seen < times;) {
    const NoticeView now = read(job.state()->slot(rank).notice);
    if (now.in_wait() && now.evaluated != last.evaluated) ++seen;
    last = now;
    std::this_thread::sleep_for(milliseconds(5));
  }
}

constexpr const char* kUsualCause =
    " (usually a call that all workers have to make, such as evaluate(), save() or a collective, "
    "was made by some of them alone; or one had fewer batches than others and left the loop "
    "without "
    "DataParallel::join())";

// promise: errors#workers-that-wait-for-one-another
TEST(Deadlock, two_workers_in_different_operations_are_told_at_once) {
  Arrivals arrivals;
  std::atomic<int> mismatches{0};
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    try {
      if (job.rank() == 0) arrivals.await(job, 1, "all-reduce of \"a\"", RankSet{1});
      if (job.rank() == 1) arrivals.await(job, 1, "broadcast of \"b\"", RankSet{0});
    } catch (const Mismatch&) {
      ++mismatches;
      throw;
    }
  });
  for (const int rank : {0, 1})
    EXPECT_EQ(
        outcome.text(rank),
        "workers wait for one another: rank 0 waits for rank 1 in all-reduce of \"a\"; rank 1 "
        "waits for rank 0 in broadcast of \"b\"" +
            std::string(kUsualCause));
  EXPECT_EQ(mismatches, 2);
}

TEST(Deadlock, circle_of_three_is_named_by_all_three_while_others_go_on) {
  Arrivals arrivals;
  std::atomic<int> told{0};
  const ThreadOutcome outcome = try_thread_ranks(5, [&](const Job& job) {
    const int rank = job.rank();
    if (rank == 3) return arrivals.await(job, 1, "other group", RankSet{3, 4});
    if (rank == 4) {
      Arrivals::poll_until([&] {
        announce(job.state()->board());
        return told == 3;
      });
      return;
    }
    const int next = (rank + 1) % 3;
    if (rank == 0) {
      poll_until_awaited(job, 1, 2);
      poll_until_awaited(job, 3, 4);
      arrivals.at[3] = arrivals.at[4] = 1;
    }
    try {
      arrivals.await(job, 1, "operation " + std::to_string(rank), RankSet{next});
    } catch (...) {
      ++told;
      throw;
    }
  });
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(outcome.text(rank),
              "workers wait for one another: rank 0 waits for rank 1 in operation 0; rank 1 waits "
              "for rank 2 in operation 1; rank 2 waits for rank 0 in operation 2" +
                  std::string(kUsualCause));
  EXPECT_EQ(outcome.text(3), "");
  EXPECT_EQ(outcome.text(4), "");
}

// promise: errors#workers-that-wait-for-one-another
TEST(Deadlock, processes_are_told_as_threads_are) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer's own thread is one that might still come";
#endif
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    Arrivals nobody;
    nobody.await(job, 1, job.rank() == 0 ? "left" : "right", RankSet{1 - job.rank()});
  });
  for (const RankEnd& end : outcome.ranks)
    EXPECT_EQ(
        end.text,
        "workers wait for one another: rank 0 waits for rank 1 in left; rank 1 waits for rank "
        "0 in right" +
            std::string(kUsualCause))
        << outcome.describe();
}

/// As a device's thread waits while the program's is in backward().
// promise: errors#workers-that-wait-for-one-another
TEST(Deadlock, of_threads_that_work_for_the_programs_is_told) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer's own thread is one that might still come";
#endif
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    Arrivals before;
    before.at[0] = before.at[1] = 1;
    before.await(job, 1, "an earlier step", RankSet{1 - job.rank()});
    std::string text;
    std::thread([&, program = ProgramThread::own()] {
      const WorksFor works(program);
      try {
        Arrivals nobody;
        nobody.await(job, 1, job.rank() == 0 ? "left" : "right", RankSet{1 - job.rank()});
      } catch (const std::exception& error) {
        text = error.what();
      }
    }).join();
    throw Error(text);
  });
  for (const RankEnd& end : outcome.ranks) EXPECT_THAT(end.text, HasSubstr("one another"));
}

/// A pool of threads that never uses the job, but might: torch's.
// promise: errors#workers-that-wait-for-one-another
TEST(Deadlock, of_a_process_with_another_thread_is_left_to_the_deadline_and_both_sides_are_named) {
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    std::atomic<bool> over{false};
    std::thread pool([&] { over.wait(false); });
    std::string text;
    try {
      Arrivals nobody;
      nobody.await(job, 1, job.rank() == 0 ? "left" : "right", RankSet{1 - job.rank()},
                   seconds(job.rank() == 0 ? 3 : 30));
    } catch (const std::exception& error) {
      text = error.what();
    }
    over = true;
    over.notify_all();
    pool.join();
    throw Error(text);
  });
  EXPECT_THAT(outcome.ranks[0].text, MatchesRegex("rank 1 has not reached left within .*rank 1 "
                                                  "waits for rank 0 in right"));
  EXPECT_THAT(outcome.ranks[1].text, Not(HasSubstr("one another")));
}

TEST(Deadlock, slow_worker_is_none) {
  Arrivals arrivals;
  run_thread_ranks(3, [&](const Job& job) {
    // 0 waits for 1, which waits for 2, which takes its time.
    if (job.rank() == 2) poll_until_looked(job, 0, 15);
    if (job.rank() == 1) arrivals.await(job, 1, "second", RankSet{2});
    if (job.rank() == 0) arrivals.await(job, 1, "first", RankSet{1});
    arrivals.arrive(job, 1);
  });
}

TEST(Deadlock, what_others_do_while_they_wait_is_no_part_of_one) {
  // Rank 1 seems to wait for rank 0, and rank 0 for rank 1, but not for calls of theirs.
  Arrivals arrivals;
  arrivals.needs_calls = false;
  run_thread_ranks(3, [&](const Job& job) {
    if (job.rank() == 2) {
      poll_until_looked(job, 0, 20);
      poll_until_looked(job, 1, 20);
      arrivals.at[0] = arrivals.at[1] = 1;
      announce(job.state()->board());
      return;
    }
    arrivals.await(job, 1, "barrier", RankSet{1 - job.rank()});
  });
}

TEST(Deadlock, worker_that_has_not_looked_again_is_never_part_of_one) {
  // Rank 0 is stopped in the midst of its wait, and does not see that rank 1 has come.
  Arrivals arrivals;
  std::atomic<bool> is_stopped{false}, may_go_on{false};
  run_thread_ranks(3, [&](const Job& job) {
    const auto begin = Clock::now();
    const auto missing = [&] {
      if (Clock::now() - begin > milliseconds(300) && !is_stopped.exchange(true)) {
        Arrivals::poll_until([&] { return may_go_on.load(); });
      }
      return RankSet{1};
    };
    if (job.rank() == 0) {
      wait_until(
          *job.state(), [&] { return arrivals.at[1] > 0; },
          [&] {
            return WaitSubject{.missing = missing,
                               .members = {1},
                               .what = [] { return "out"; },
                               .check = {},
                               .deadline = job.state()->deadline(seconds(60)),
                               .needs_calls = true};
          });
      arrivals.arrive(job, 1);
    } else if (job.rank() == 1) {
      Arrivals::poll_until([&] { return is_stopped.load(); });
      arrivals.arrive(job, 1);
      arrivals.await(job, 1, "in", RankSet{0});
    } else {
      poll_until_looked(job, 1, 20);
      may_go_on = true;
    }
  });
}

// promise: errors#workers-that-wait-for-one-another
TEST(Deadlock, worker_that_uses_several_threads_is_never_part_of_one) {
  Arrivals arrivals;
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 1) std::thread([&] { job.state()->next_number("other thread"); }).join();
    arrivals.await(job, 1, "barrier", RankSet{1 - job.rank()}, seconds(2));
  });
  EXPECT_THAT(outcome.text(0) + outcome.text(1), HasSubstr("has not reached barrier within"));
  EXPECT_THAT(outcome.text(0) + outcome.text(1), Not(HasSubstr("one another")));
}

TEST(Deadlock, busy_worker_is_never_part_of_one) {
  Arrivals arrivals;
  run_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 1) {
      const Busy busy = job.busy("evaluate", std::chrono::minutes(1));
      poll_until_awaited(job, 0, 1);
      std::thread helper([&] {
        poll_until_looked(job, 0, 15);
        arrivals.at[0] = 1;
        arrivals.at[1] = 1;
        announce(job.state()->board());
      });
      arrivals.await(job, 1, "in", RankSet{0});
      helper.join();
    } else {
      arrivals.await(job, 1, "out", RankSet{1});
    }
  });
}

TEST(Deadlock, worker_whose_stores_are_on_their_way_is_never_part_of_one) {
  Arrivals arrivals;
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    WorkerSlot& slot = job.state()->slot(0);
    if (job.rank() == 0) slot.stores_sent = 7;
    if (job.rank() == 1) slot.stores_done = 6;
    arrivals.await(job, 1, "barrier", RankSet{1 - job.rank()}, seconds(2));
  });
  EXPECT_THAT(outcome.text(0) + outcome.text(1), HasSubstr("has not reached barrier within"));
  EXPECT_THAT(outcome.text(0) + outcome.text(1), Not(HasSubstr("one another")));
}

}  // namespace
}  // namespace tutti::test
