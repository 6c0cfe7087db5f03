// What a worker has told its broker when that ends is lost, with nobody else to wait for.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "support/thread_ranks.h"
#include "tutti/error.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// Rank 2 has the broker of its host, and ends when `cut_off` of its neighbours are in a barrier
/// that they have reached without anybody else's knowing it.
ThreadOutcome barrier_of_the_cut_off(const std::vector<int>& cut_off) {
  ThreadOptions options;
  options.hosts = HostMap::of(std::vector<RankSet>{{0, 1}, {2, 3, 4}});
  options.world = std::make_shared<ThreadWorld>(5);
  return try_thread_ranks(
      5,
      [&](const Job& job) {
        auto& hosts = *options.world->hosts();
        const Group group(job);
        group.barrier();
        const bool is_cut_off = std::ranges::find(cut_off, job.rank()) != cut_off.end();
        if (is_cut_off) hosts.lose_stores(job.rank());
        std::thread end;
        if (is_cut_off) {
          end = std::thread([&] {
            std::this_thread::sleep_for(milliseconds(300));
            options.world->kill(2);
            hosts.end_broker_of(job.rank());
          });
        }
        try {
          group.barrier({.deadline = std::chrono::seconds(30)});
        } catch (...) {
          if (end.joinable()) end.join();
          hosts.kill(job.rank());
          throw;
        }
        if (end.joinable()) end.join();
      },
      options);
}

TEST(CutOff, AWorkerWhoseWordIsLostHearsWhoTookItAlong) {
  const auto outcome = barrier_of_the_cut_off({3});
  EXPECT_THAT(outcome.text(3), HasSubstr("rank 2 ended, through which its host reaches the others, "
                                         "before all knew of rank 3 in barrier"));
  EXPECT_THROW(std::rethrow_exception(outcome.errors[3]), PeerLost);
  EXPECT_NE(outcome.text(0), "");
}

TEST(CutOff, NeighboursWhoseWordsAreLostDoNotWaitForOneAnother) {
  const auto outcome = barrier_of_the_cut_off({3, 4});
  for (const int rank : {3, 4}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 2 ended")) << rank;
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), PeerLost);
  }
}

}  // namespace
}  // namespace tutti::test
