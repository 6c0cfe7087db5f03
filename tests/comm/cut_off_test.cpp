// A host that is cut off from the others: what a worker has told its broker when that ends is lost,
// with nobody else to wait for; and no group is made there any more.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/on_hosts.h"
#include "job/job_state.h"
#include "job/wire/board.h"
#include "job/wire/rank_set.h"
#include "support/expect_lost.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Until each of these waits for nobody but them, which whoever sees it first tells the others: it
/// is over soon.
void wait_until_alone(const Job& job, const RankSet& ranks, std::atomic<bool>& was_seen) {
  const auto is_alone = [&](int rank) {
    const NoticeView wait = read(job.state()->slot(rank).notice);
    return wait.in_wait() && (wait.missing - ranks).empty();
  };
  while (!was_seen && !std::ranges::all_of(ranks.ranks(), is_alone)) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  was_seen = true;
}

/// Rank 2 has the broker of its host, and ends when `cut_off` of its neighbours are in a barrier
/// that all have reached, they without anybody else's knowing it.
ThreadOutcome barrier_of_the_cut_off(const RankSet& cut_off) {
  ThreadOptions options;
  options.hosts = HostMap::of(std::vector<RankSet>{{0, 1}, {2, 3, 4}});
  options.world = std::make_shared<ThreadWorld>(5);
  std::atomic<bool> are_alone{false};
  return try_thread_ranks(
      5,
      [&](const Job& job) {
        auto& hosts = *options.world->hosts();
        const Group group(job);
        group.barrier();
        const bool is_cut_off = cut_off.contains(job.rank());
        if (is_cut_off) hosts.lose_stores(job.rank());
        std::thread end;
        if (is_cut_off) {
          end = std::thread([&] {
            wait_until_alone(job, cut_off, are_alone);
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

/// That a group of these ranks is PeerLost of that one.
void expect_no_group(const Job& job, const std::vector<int>& ranks, int lost,
                     const std::string& text) {
  try {
    const Group group(job, ranks, "rest");
    ADD_FAILURE() << "rank " << job.rank() << " is in a group, and its host is cut off";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), lost) << error.what();
    EXPECT_THAT(error.what(), StartsWith(text));
    EXPECT_THAT(error.what(), HasSubstr("is not possible any more, and other hosts may resume "
                                        "without this one"));
  }
}

/// The loop of docs/errors.md, to the first group that is made and used.
std::vector<int> resumed_with(const Job& job, std::size_t members) {
  while (true) {
    const auto alive = job.alive();
    if (alive.size() != members) {
      std::this_thread::sleep_for(milliseconds(1));
      continue;
    }
    Group(job, alive, "rest").barrier();
    return alive;
  }
}

void wait_for_alive(const Job& job, const std::vector<int>& ranks) {
  while (job.alive() != ranks) std::this_thread::sleep_for(milliseconds(1));
}

/// Until all have come here: what was called before has ended everywhere.
void meet(std::atomic<int>& there, int size) {
  ++there;
  while (there < size) std::this_thread::sleep_for(milliseconds(1));
}

/// Runs it on these hosts' ranks, once all have come through a barrier of the group of all.
ThreadOutcome once_joined(const ThreadOptions& options,
                          const std::function<void(const Job&, const Group&)>& body) {
  std::atomic<int> there{0};
  return try_thread_ranks(
      options.hosts->size(),
      [&](const Job& job) {
        const Group group(job);
        group.barrier();
        meet(there, job.size());
        body(job, group);
      },
      options);
}

// promise: errors#a-trainer-resumes-from-its-checkpoint, job.h#alive
TEST(CutOff, AHostWithoutItsFirstWorkerMakesNoGroupAndTheOthersDo) {
  auto options = on({{0, 1}, {2, 3, 4}, {5}});
  std::atomic<int> done{0};
  const auto outcome = once_joined(options, [&](const Job& job, const Group&) {
    auto& hosts = *options.world->hosts();
    if (job.rank() == 2) {
      options.world->kill(2);
      for (const int rank : {3, 4}) hosts.end_broker_of(rank);
      hosts.cut(1);
    } else if (job.rank() == 3 || job.rank() == 4) {
      wait_for_alive(job, {3, 4});
      const std::string text =
          "rank 2 ended, through which its host reaches the others: the making of group "
          "\"rest\" of ranks ";
      expect_no_group(job, {job.rank()}, 2, text + std::to_string(job.rank()));
      expect_no_group(job, {3, 4}, 2, text + "3 4");
      expect_no_group(job, {0, 1, 2, 3, 4, 5}, 2, text + "0 1 2 3 4 5");
    } else {
      EXPECT_THAT(resumed_with(job, 3), ElementsAre(0, 1, 5));
    }
    meet(done, 6);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.text(0) << outcome.text(3) << outcome.text(4);
}

// promise: errors#a-trainer-resumes-from-its-checkpoint, job.h#alive
TEST(CutOff, WithoutTheHubAHostMakesNoGroupAndTheOthersDo) {
  auto options = on({{0, 1}, {2, 3}, {4}});
  std::atomic<int> done{0};
  const auto outcome = once_joined(options, [&](const Job& job, const Group&) {
    if (job.rank() == 0) options.world->hosts()->cut(1);
    if (job.rank() == 2 || job.rank() == 3) {
      wait_for_alive(job, {2, 3});
      const std::string text =
          "rank 0 ended or cannot be reached, through which the host of rank " +
          std::to_string(job.rank()) +
          " reaches the others: the making of group \"rest\" of ranks ";
      expect_no_group(job, {job.rank()}, 0, text + std::to_string(job.rank()));
      expect_no_group(job, {2, 3}, 0, text + "2 3");
    } else {
      EXPECT_THAT(resumed_with(job, 3), ElementsAre(0, 1, 4));
    }
    meet(done, 5);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.text(0) << outcome.text(2) << outcome.text(4);
}

TEST(CutOff, AGroupThatIsBeingMadeWhenTheHubIsLostIsLost) {
  auto options = on({{0, 1}, {2, 3}});
  const auto outcome = once_joined(options, [&](const Job& job, const Group&) {
    if (job.rank() == 2) Group(job, {2, 3}, "late").barrier();
    if (job.rank() != 3) return;
    std::this_thread::sleep_for(milliseconds(100));  // rank 2 waits
    options.world->hosts()->cut(1);
    wait_for_alive(job, {3});
  });
  expect_lost(outcome, {2}, 0);
  EXPECT_THAT(outcome.text(2), HasSubstr("the making of group \"late\" of ranks 2 3"));
}

/// A worker whose program ended as soon as it had joined took along that another host had come.
TEST(CutOff, WhatAllHadComeToWhenTheHubIsLostIsDone) {
  auto options = on({{0}, {1, 2}});
  std::atomic<int> held{0};
  std::atomic<int> done{0};
  const auto outcome = once_joined(options, [&](const Job& job, const Group&) {
    if (job.rank() == 0) {
      options.world->hosts()->hold(1, true);
      meet(held, 3);
      std::this_thread::sleep_for(milliseconds(100));  // both have given
      options.world->hosts()->cut(1);
    } else {
      meet(held, 3);
      const auto parcels = job.state()->rendezvous().all_gather(
          "tag", {1, 2}, {std::to_string(job.rank()), {}},
          Deadline::after(Clock::now(), std::chrono::seconds(30)));
      EXPECT_EQ(parcels.at(0).bytes + parcels.at(1).bytes, "12");
    }
    meet(done, 3);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.text(0) << outcome.text(1) << outcome.text(2);
}

/// Rank 3 heard of ranks 0 and 1, which lived: "ranks 0 1 2 ended", or without the 2. Here its
/// neighbour sees earlier that the broker is gone, and nobody has seen the end of rank 2 yet.
TEST(CutOff, AWaitNamesTheFirstWorkerAndNobodyOfWhomNothingIsKnown) {
  auto options = on({{0, 1}, {2, 3, 4}});
  std::atomic<int> done{0};
  const auto outcome = once_joined(options, [&](const Job& job, const Group& group) {
    try {
      if (job.rank() == 3) group.barrier();
    } catch (...) {
      meet(done, 5);
      throw;
    }
    if (job.rank() == 4) {
      std::this_thread::sleep_for(milliseconds(100));  // rank 3 waits
      options.world->hosts()->end_broker_of(4);
    }
    meet(done, 5);
  });
  expect_lost(outcome, {3}, 2);
  EXPECT_THAT(outcome.text(3),
              AllOf(StartsWith("rank 2 ended, through which its host reaches the others, before "
                               "reaching barrier"),
                    HasSubstr("(it was waited for by rank 3; rank 3 is there)")));
}

TEST(CutOff, AWaitNamesRankZeroWhereTheHubIsLost) {
  auto options = on({{0, 1}, {2, 3}, {4}});
  std::atomic<int> there{0};
  const auto outcome = try_thread_ranks(
      5,
      [&](const Job& job) {
        const Group group(job);
        group.barrier();
        if (++there == 5) options.world->hosts()->cut(1);
        while (true) group.barrier();
      },
      options);
  expect_lost(outcome, {2, 3}, 0);
  for (const int rank : {2, 3}) {
    EXPECT_THAT(outcome.text(rank),
                StartsWith("rank 0 ended or cannot be reached, through which the host of rank "));
  }
}

TEST(CutOff, TheLastHostsWorkersMakeGroupsWhenTheOthersHaveLeft) {
  for (const bool hub_stays : {false, true}) {
    auto options = on({{0, 1}, {2, 3}});
    const auto outcome = try_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          group.barrier();
          if ((job.rank() < 2) != hub_stays) return;
          EXPECT_THAT(resumed_with(job, 2), ElementsAre(hub_stays ? 0 : 2, hub_stays ? 1 : 3));
          Group(job, {job.rank()}, "alone").barrier();
        },
        options);
    EXPECT_TRUE(outcome.all_good()) << outcome.text(0) << outcome.text(2);
  }
}

}  // namespace
}  // namespace tutti::test
