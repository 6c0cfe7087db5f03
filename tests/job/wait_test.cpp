#include "job/wait.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>

#include "arrivals.h"
#include "support/log_capture.h"
#include "support/thread_hosts.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Rounds : public ::testing::TestWithParam<std::tuple<int, int>> {};

// promise: group#waiting-and-what-started-means
TEST_P(Rounds, everyone_sees_what_all_wrote_before_the_round) {
  const int size = std::get<0>(GetParam());
  const int processors = std::get<1>(GetParam());
  constexpr int kRounds = 300;
  Arrivals arrivals;
  std::array<std::int64_t, kMaxWorkers> plain{};  // ordered by the waits alone
  ThreadOptions options;
  options.processors = processors;
  run_thread_ranks(
      size,
      [&](const Job& job) {
        const auto me = static_cast<std::size_t>(job.rank());
        for (int round = 0; round < kRounds; ++round) {
          plain[me] = round * (job.rank() + std::int64_t{1});
          arrivals.arrive(job, 2 * round + 1);
          arrivals.await(job, 2 * round + 1, "write");
          for (int r = 0; r < job.size(); ++r)
            ASSERT_EQ(plain[static_cast<std::size_t>(r)], round * (r + 1));
          arrivals.arrive(job, 2 * round + 2);
          arrivals.await(job, 2 * round + 2, "read");
        }
        EXPECT_EQ(job.state()->crowded(), size > processors);
        EXPECT_EQ(job.state()->processors_per_worker(), std::max(1, processors / size));
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Wait, Rounds,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5, 8),
                                            ::testing::Values(1, 64)));

TEST(Wait, nobody_is_left_registered_as_a_sleeper) {
  Arrivals arrivals;
  run_thread_ranks(3, [&](const Job& job) {
    if (job.rank() == 2) poll_until_awaited(job, 0, 2);
    arrivals.arrive(job, 1);
    arrivals.await(job, 1, "one");
    arrivals.arrive(job, 2);
    arrivals.await(job, 2, "two");
    if (job.rank() == 0)
      Arrivals::poll_until([&] { return job.state()->board().sleepers.load() == 0; });
    arrivals.arrive(job, 3);
    Arrivals::poll_until([&] { return arrivals.missing({0, 1, 2}, 3).empty(); });
    EXPECT_FALSE(read(job.state()->slot(job.rank()).notice).in_wait());
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error, job.h#alive
TEST(Wait, death_of_a_worker_ends_the_wait_and_is_blamed) {
  Arrivals arrivals;
  std::atomic<int> finished{0};
  ThreadOptions options;
  options.world = std::make_shared<ThreadWorld>(4);
  const ThreadOutcome outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        if (job.rank() == 2) {
          for (const int other : {0, 1, 3}) poll_until_awaited(job, other, 2);
          EXPECT_THAT(job.alive(), ::testing::ElementsAre(0, 1, 2, 3));
          options.world->kill(2);
          Arrivals::poll_until([&] { return finished == 3; });
          return;
        }
        arrivals.arrive(job, 1);
        try {
          arrivals.await(job, 1, "step 17, all-reduce of \"encoder.weight\"");
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.rank(), 2);
          EXPECT_FALSE(std::ranges::count(job.alive(), 2));
          ++finished;
          Arrivals::poll_until([&] { return finished == 3; });
          throw;
        }
      },
      options);
  EXPECT_EQ(outcome.text(0),
            "rank 2 ended before reaching step 17, all-reduce of \"encoder.weight\" (it was waited "
            "for by rank 0; ranks 0 1 3 are there)");
  EXPECT_THAT(outcome.text(3), HasSubstr("it was waited for by rank 3"));
  EXPECT_EQ(outcome.text(2), "");
  const auto blames = options.world->blames();
  ASSERT_EQ(blames.size(), 3U);
  for (const Blame& blame : blames) EXPECT_EQ(blame.culprit, 2);
}

TEST(Wait, worker_that_left_in_an_orderly_way_is_told_from_one_that_died) {
  Arrivals arrivals;
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 1) return poll_until_awaited(job, 0, 1);
    arrivals.arrive(job, 1);
    arrivals.await(job, 1, "barrier");
  });
  EXPECT_EQ(outcome.text(0),
            "rank 1 left the job in an orderly way before reaching barrier (it was waited for by "
            "rank 0; rank 0 is there)");
}

TEST(Wait, work_of_a_worker_that_ended_afterwards_counts) {
  Arrivals arrivals;
  run_thread_ranks(3, [&](const Job& job) {
    if (job.rank() == 1) return arrivals.arrive(job, 1);
    Arrivals::poll_until([&] { return job.state()->gone().all.contains(1); });
    // Rank 0 looks around while rank 1 has come and gone, and only rank 2 is missing.
    if (job.rank() == 2)
      Arrivals::poll_until([&] {
        const NoticeView notice = read(job.state()->slot(0).notice);
        return notice.in_wait() || job.state()->gone().all.contains(0);
      });
    arrivals.arrive(job, 1);
    arrivals.await(job, 1, "barrier");
  });
}

// promise: error.h#Timeout, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(Wait, deadline_names_who_is_missing_and_what_it_waits_for) {
  Arrivals arrivals;
  std::atomic<bool> over{false};
  const ThreadOutcome outcome = try_thread_ranks(3, [&](const Job& job) {
    if (job.rank() == 2) return Arrivals::poll_until([&] { return over.load(); });
    if (job.rank() == 1)
      return arrivals.await(job, 5, "broadcast of \"seed\"", RankSet{2}, seconds(60));
    poll_until_awaited(job, 1, 2);
    arrivals.arrive(job, 1);
    try {
      arrivals.await(job, 1, "step 3, barrier", RankSet{0, 1}, milliseconds(300));
    } catch (const Timeout&) {
      over = true;
      throw;
    }
  });
  EXPECT_THAT(outcome.text(0),
              MatchesRegex("rank 1 has not reached step 3, barrier within [0-9.]+ s .rank 0 is "
                           "there.; rank 1 waits for rank 2 in broadcast of \"seed\""));
  EXPECT_THAT(outcome.text(1), HasSubstr("rank 2 left the job"));
}

TEST(Wait, deadline_names_who_passes_on_what_does_not_come) {
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 0) return;
    wait_until(
        *job.state(), [] { return false; },
        [&] {
          return WaitSubject{.missing = [] { return RankSet(); },
                             .members = {},
                             .what = [] { return "a decision of all hosts"; },
                             .check = {},
                             .deadline = job.state()->system().now() + milliseconds(200),
                             .passed_on_by = {0}};
        });
  });
  EXPECT_THAT(outcome.text(1),
              MatchesRegex("rank 0 has not passed on a decision of all hosts within [0-9.]+ s "
                           ".rank 1 is there."));
}

TEST(Wait, deadline_names_the_neighbour_that_passes_on_what_is_told_of_other_hosts) {
  Arrivals arrivals;
  std::atomic<int> ended{0};
  ThreadOptions options;
  options.hosts = even_hosts(4, 2);
  const ThreadOutcome outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        if (job.rank() < 2) return Arrivals::poll_until([&] { return ended == 2; });
        try {
          arrivals.await(job, 1, "barrier", RankSet{0, 1}, milliseconds(300));
        } catch (const Timeout&) {
          ++ended;
          Arrivals::poll_until([&] { return ended == 2; });
          throw;
        }
      },
      options);
  EXPECT_THAT(outcome.text(2), MatchesRegex("ranks 0 1 have not reached barrier within [0-9.]+ s "
                                            ".rank 2 is there."));
  EXPECT_THAT(outcome.text(3), HasSubstr("(rank 3 is there); rank 2 passes on what is told of "
                                         "ranks 0 1"));
}

// promise: errors#deadlines, job.h#seconds, job.h#stall_notice
TEST(Wait, stall_is_noticed_once_for_all_and_again_when_it_doubles) {
  LogCapture log;
  Arrivals arrivals;
  ThreadOptions options;
  options.job.stall_notice = milliseconds(100);
  run_thread_ranks(
      4,
      [&](const Job& job) {
        if (job.rank() == 2) Arrivals::poll_until([&] { return log.count("rank 2 has not") >= 3; });
        arrivals.arrive(job, 1);
        arrivals.await(job, 1, "step 17, barrier");
      },
      options);
  const auto lines = log.lines();
  ASSERT_GE(lines.size(), 3U);
  EXPECT_THAT(
      lines[0],
      MatchesRegex("warning: rank 2 has not reached step 17, barrier .0.[0-9]+ s; "
                   "gives up at 60 s; ranks 0 1 3 are there.; what takes one worker alone long "
                   "is told by Job::busy.."));
  EXPECT_LE(lines.size(), 6U) << "one rank speaks for three";
  // At 0.1, 0.2, 0.4 s or later: each look at what is missing would be three by 0.3 s.
  double seconds = 0;
  ASSERT_EQ(std::sscanf(lines[2].c_str(), "warning: rank 2 has not reached step 17, barrier (%lf s",
                        &seconds),
            1)
      << lines[2];
  EXPECT_GE(seconds, 0.4);
}

TEST(Wait, of_a_moment_says_nothing) {
  LogCapture log;
  Arrivals arrivals;
  run_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 1) poll_until_awaited(job, 0, 1);
    arrivals.arrive(job, 1);
    arrivals.await(job, 1, "barrier");
  });
  EXPECT_TRUE(log.lines().empty());
}

// promise: errors#deadlines, job.h#busy
TEST(Wait, busy_worker_is_waited_for_beyond_the_deadline_without_a_word) {
  LogCapture log;
  Arrivals arrivals;
  ThreadOptions options;
  options.job.stall_notice = milliseconds(50);
  run_thread_ranks(
      3,
      [&](const Job& job) {
        // Rank 2 waits for the busy rank 1: it is excused as well.
        if (job.rank() == 1) {
          const Busy busy = job.busy("evaluate", std::chrono::minutes(30));
          poll_until_awaited(job, 0, 2);
          poll_until_awaited(job, 2, 1);
          const auto until = Clock::now() + milliseconds(1500);
          Arrivals::poll_until([&] { return Clock::now() > until; });
          // Once it has arrived nobody is excused: on a loaded machine rank 2 may be late.
          EXPECT_EQ(log.count("has not reached"), 0);
          arrivals.arrive(job, 1);
        } else if (job.rank() == 2) {
          poll_until_busy(job, 1);
          arrivals.await(job, 1, "first", RankSet{1}, seconds(1));
          arrivals.arrive(job, 2);
        } else {
          poll_until_busy(job, 1);
          poll_until_awaited(job, 2, 1);
          arrivals.await(job, 2, "second", RankSet{2}, seconds(1));
        }
      },
      options);
}

// promise: job.h#busy
TEST(Wait, worker_busy_for_longer_than_it_said_is_late) {
  Arrivals arrivals;
  std::atomic<bool> over{false};
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 1) {
      const Busy busy = job.busy("save", milliseconds(20));
      return Arrivals::poll_until([&] { return over.load(); });
    }
    poll_until_busy(job, 1);
    try {
      arrivals.await(job, 1, "barrier", RankSet{1}, milliseconds(200));
    } catch (...) {
      over = true;
      throw;
    }
  });
  EXPECT_THAT(outcome.text(0),
              HasSubstr("rank 1 is busy with \"save\", for longer than it had said"));
}

// promise: job.h#Busy, job.h#busy
TEST(Wait, overlapping_busy_periods_last_as_long_as_the_longest) {
  run_thread_ranks(1, [](const Job& job) {
    const WorkerSlot& slot = job.state()->slot(0);
    EXPECT_EQ(slot.busy_until.load(), 0);
    auto evaluate = std::make_unique<Busy>(job.state(), "evaluate", std::chrono::hours(2));
    {
      const Busy save = job.busy("save", std::chrono::minutes(1));
      EXPECT_EQ(read(slot.busy_what), "evaluate");
      evaluate.reset();
      EXPECT_EQ(read(slot.busy_what), "save");
    }
    EXPECT_EQ(slot.busy_until.load(), 0);
    EXPECT_THROW(static_cast<void>(job.busy("nothing", milliseconds(0))), InvalidArgument);
  });
}

TEST(Wait, own_reason_to_stop_comes_first) {
  std::atomic<bool> closed{false};
  const ThreadOutcome outcome = try_thread_ranks(2, [&](const Job& job) {
    JobState& state = *job.state();
    if (job.rank() == 1) {
      poll_until_awaited(job, 0, 1);
      closed = true;
      announce(state.board());
      return;  // and leaves: that would be PeerLost
    }
    wait_until(
        state, [] { return false; },
        [&] {
          return WaitSubject{.missing = [] { return RankSet{1}; },
                             .members = {0, 1},
                             .what = [] { return "barrier"; },
                             .check =
                                 [&] {
                                   if (closed) throw Mismatch("rank 1 closed the group");
                                 },
                             .deadline = state.deadline()};
        });
  });
  EXPECT_EQ(outcome.text(0), "rank 1 closed the group");
}

// promise: group#waiting-and-what-started-means
TEST(Wait, callbacks_are_not_asked_while_spinning_is_enough) {
  run_thread_ranks(1, [](const Job& job) {
    int asked = 0;
    wait_until(
        *job.state(), [&] { return ++asked == 3; },
        []() -> WaitSubject { throw std::logic_error("asked"); });
    EXPECT_EQ(asked, 3);
  });
}

}  // namespace
}  // namespace tutti::test
