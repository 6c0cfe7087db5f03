// A worker that was stopped while it waited: on its clock a minute passes from one look to the
// next.

#include <atomic>
#include <memory>
#include <thread>

#include <gmock/gmock.h>

#include "arrivals.h"
#include "support/thread_ranks.h"
#include "support/wrapped_system.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kStop{60};

/// Rank 0 waits for rank 1, which comes after rank 0 has been stopped so often. Whether it was in
/// time.
bool waits_through(milliseconds deadline, int stops) {
  const auto world = std::make_shared<ThreadWorld>(2);
  const auto clock = std::make_shared<SettableClock>(std::make_shared<ThreadSystem>(world, 0));
  Arrivals arrivals;
  std::atomic<bool> over{false};
  bool in_time = true;
  std::thread other([&] {
    const Job job(
        std::make_shared<JobState>(Identity{1, 2}, std::make_shared<ThreadSystem>(world, 1),
                                   world->thread_rendezvous().rendezvous(1), JobOptions{}));
    poll_until_awaited(job, 0, 1);
    const auto looked = [&] {
      return Clock::time_point(Clock::duration(read(job.state()->slot(0).notice).evaluated));
    };
    for (int stop = 0; stop < stops && !over; ++stop) {
      clock->forward(kStop);
      const auto resumed = clock->now();
      Arrivals::poll_until([&] { return over || looked() >= resumed; });
    }
    arrivals.arrive(job, 1);
    Arrivals::poll_until([&] { return over.load(); });
  });
  {
    const Job job(std::make_shared<JobState>(
        Identity{0, 2}, clock, world->thread_rendezvous().rendezvous(0), JobOptions{}));
    try {
      arrivals.await(job, 1, "one", RankSet{1}, deadline);
    } catch (const Timeout&) {
      in_time = false;
    }
    over = true;
  }
  other.join();
  return in_time;
}

// promise: errors#deadlines
TEST(Stopped, time_counts_a_second_of_each_stop) {
  EXPECT_TRUE(waits_through(seconds(12), 6));
  EXPECT_FALSE(waits_through(seconds(12), 16)) << "a wait does not last for ever";
}

// promise: errors#deadlines
TEST(Stopped, time_counts_a_quarter_of_a_short_deadline) {
  EXPECT_TRUE(waits_through(seconds(2), 2));
  EXPECT_FALSE(waits_through(seconds(2), 6));
}

}  // namespace
}  // namespace tutti::test
