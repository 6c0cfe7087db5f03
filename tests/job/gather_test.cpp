#include "job/gather.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "job/arrivals.h"
#include "support/log_capture.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

ThreadOptions hasty(milliseconds deadline, milliseconds notice) {
  ThreadOptions options;
  options.job.deadline = deadline;
  options.job.stall_notice = notice;
  return options;
}

// promise: errors#deadlines, errors#workers-that-wait-for-one-another
TEST(Gather, AStallIsNoticedAndNamesWhoHasNotCome) {
  LogCapture log;
  run_thread_ranks(
      3,
      [&](const Job& job) {
        if (job.rank() == 1) {
          Arrivals::poll_until(
              [&] { return log.count("rank 1 has not reached group \"a\"") >= 2; });
        }
        gather(*job.state(), "group \"a\"", {0, 1, 2}, {});
      },
      hasty(seconds(60), milliseconds(150)));
}

// promise: errors#deadlines
TEST(Gather, TheTimeOfABusyWorkerDoesNotCount) {
  run_thread_ranks(
      2,
      [&](const Job& job) {
        if (job.rank() == 1) {
          const auto busy = job.busy("download", seconds(60));
          std::this_thread::sleep_for(milliseconds(2500));  // more than two deadlines
        }
        EXPECT_EQ(gather(*job.state(), "group \"a\"", {0, 1}, {}).size(), 2U);
      },
      hasty(seconds(1), seconds(10)));
}

TEST(Gather, TheDeadlineStillHolds) {
  const ThreadOutcome outcome = try_thread_ranks(
      2,
      [&](const Job& job) {
        if (job.rank() == 0) gather(*job.state(), "group \"a\"", {0, 1}, {});
        if (job.rank() == 1) poll_until_awaited(job, 0, 1);
      },
      hasty(milliseconds(400), seconds(10)));
  EXPECT_THAT(outcome.text(0), HasSubstr("rank 1"));
}

/// The same with makings of groups: nobody proves that the other one does not come.
// promise: errors#workers-that-wait-for-one-another
TEST(Gather, WorkersInDifferentOnesAreNotToldOfOneAnotherBeforeTheDeadline) {
  const ThreadOutcome outcome = try_thread_ranks(
      2,
      [&](const Job& job) {
        gather(*job.state(), job.rank() == 0 ? "group \"a\"" : "group \"b\"", {0, 1}, {});
      },
      hasty(seconds(3), seconds(10)));
  EXPECT_THAT(outcome.text(0) + outcome.text(1),
              ContainsRegex("rank [01] had not come to group \"[ab]\" when rank [01] gave up"));
  EXPECT_THAT(outcome.text(0) + outcome.text(1), Not(HasSubstr("one another")));
}

/// What its callers know ends it for all of them, whoever looks first.
TEST(Gather, EndsWhereSomeWillNeverCome) {
  std::atomic<bool> has_gone{false};
  std::atomic<int> over{0};
  const ThreadOutcome outcome = try_thread_ranks(
      3,
      [&](const Job& job) {
        if (job.rank() == 2) {
          poll_until_awaited(job, 0, 2);
          poll_until_awaited(job, 1, 2);
          has_gone = true;
          Arrivals::poll_until([&] { return over == 2; });
          return;
        }
        const auto check = [&] {
          if (has_gone) throw PeerLost(2, "rank 2 has other things to do");
        };
        try {
          gather(*job.state(), "group \"a\"", {0, 1, 2}, {}, check);
        } catch (...) {
          ++over;
          throw;
        }
      },
      hasty(seconds(60), seconds(50)));
  for (const int rank : {0, 1}) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), PeerLost);
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 2 has other things to do"));
  }
}

/// The first look after the end of rank 2 does not find what it has told, as one just before would
/// not.
TEST(Gather, OfAWorkerThatToldWhyItEndsNamesWhatItTold) {
  auto options = hasty(seconds(20), seconds(50));
  options.world = std::make_shared<ThreadWorld>(3);
  std::atomic<bool> has_told{false};
  std::atomic<int> over{0};
  const ThreadOutcome outcome = try_thread_ranks(
      3,
      [&](const Job& job) {
        if (job.rank() == 2) {
          poll_until_awaited(job, 0, 2);
          poll_until_awaited(job, 1, 2);
          options.world->kill(2);
          Arrivals::poll_until([&] { return over == 2; });
          return;
        }
        const auto check = [&] {
          if (job.state()->gone().all.contains(2) && has_told.exchange(true)) {
            throw PeerLost(1, "rank 1 is why rank 2 has ended");
          }
        };
        try {
          gather(*job.state(), "group \"a\"", {0, 1, 2}, {}, check);
        } catch (...) {
          ++over;
          throw;
        }
      },
      options);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 1 is why rank 2 has ended"));
  }
}

}  // namespace
}  // namespace tutti::test
