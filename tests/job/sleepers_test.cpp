// The count of sleepers, for whose sake every announcement is a system call, when one is killed.

#include <gmock/gmock.h>

#include <csignal>
#include <thread>

#include "arrivals.h"
#include "support/process_ranks.h"

namespace tutti::test {
namespace {

TEST(Sleepers, worker_killed_in_its_sleep_is_not_counted_any_more) {
  const ProcessOutcome outcome = run_process_ranks(3, [](const Job& job) {
    const Board& board = job.state()->board();
    const Arrivals nobody;
    if (job.rank() == 1) {
      std::thread other([&] { nobody.await(job, 1, "left", RankSet{0}); });
      std::thread killer([&] {
        Arrivals::poll_until([&] { return board.sleepers.load() == 2; });
        ::raise(SIGKILL);
      });
      nobody.await(job, 1, "right", RankSet{0});
    }
    Arrivals::poll_until([&] { return job.alive().size() == 2 || job.alive().size() == 1; });
    Arrivals::poll_until([&] { return board.sleepers.load() == 0; });
  });
  EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
  EXPECT_TRUE(outcome.ranks[0].good() && outcome.ranks[2].good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
