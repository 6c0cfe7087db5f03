// Large collectives of groups whose hosts have a link: what travels, what their members get, and
// how they end. The bytes of every kind on every layout are those of hosts_test.cpp; chaos adds
// what goes wrong (tests/chaos).

#include <atomic>
#include <functional>
#include <thread>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "comm/link/link_engine.h"
#include "comm/on_hosts.h"
#include "job/job_state.h"
#include "support/expect_lost.h"
#include "support/log_capture.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::int64_t kWhole = 128 * 1024;  // a whole chunk, which slices of hosts divide
constexpr std::uint64_t kBytes = kWhole * sizeof(float);

// promise: links#what-travels-between-hosts, group#between-hosts
TEST(LargeBetweenHosts, AHostSendsAGradientTwiceHoweverManyMembersItHas) {
  for (const auto& hosts : kHosts) {
    // Those of {0, 2} and {1, 3} are no neighbours in the tree.
    const bool is_split = hosts[0].contains(2) && !hosts[0].contains(1);
    const auto result = bytes_moved(hosts, [](const Group& group) {
      auto values = Values<float>::random(kWhole, 1);
      group.all_reduce(view(values), Reduction::sum);
    });
    const auto others = hosts.size() - 1;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      const bool is_three = hosts[host] == RankSet{0, 1, 2};  // the subtrees 0 1 and 2
      const std::uint64_t blocks = is_split || is_three ? 2 : 1;
      EXPECT_EQ(result.from[host], (blocks + 1) * others * kBytes / hosts.size()) << host;
    }
    EXPECT_LT(result.by_hub, 4000u);
  }
}

// promise: links#what-travels-between-hosts, group#between-hosts
TEST(LargeBetweenHosts, EachKindMovesWhatItsReceiversNeed) {
  const std::vector<RankSet> hosts = {{0, 1}, {2, 3}};
  const auto reduced = bytes_moved(hosts, [](const Group& group) {
    auto values = Values<float>::random(kWhole, 1);
    group.reduce(view(values), view(values), Reduction::mean, 3);
  });
  EXPECT_EQ(reduced.from, (std::vector<std::uint64_t>{kBytes, kBytes / 2}));
  const auto scattered = bytes_moved(hosts, [](const Group& group) {
    auto values = Values<float>::random(kWhole, 1);
    Values<float> part(kWhole / 4);
    group.reduce_scatter(view(values), view(part), Reduction::sum);
  });
  EXPECT_EQ(scattered.from, (std::vector<std::uint64_t>{kBytes / 2, kBytes / 2}));
  const auto gathered = bytes_moved(hosts, [](const Group& group) {
    auto part = Values<float>::random(kWhole / 4, 1);
    Values<float> all(kWhole);
    group.all_gather(view(part), view(all));
  });
  EXPECT_EQ(gathered.from, (std::vector<std::uint64_t>{kBytes / 2, kBytes / 2}));
  const auto cast = bytes_moved(hosts, [](const Group& group) {
    auto values = Values<float>::random(kWhole, 1);
    group.broadcast(view(values), 2);
  });
  EXPECT_EQ(cast.from, (std::vector<std::uint64_t>{0, kBytes}));
  for (const auto& result : {reduced, scattered, gathered, cast}) EXPECT_LT(result.by_hub, 4000u);
}

// promise: group#between-hosts
TEST(LargeBetweenHosts, SixteenBitsTravelOnceForEachMember) {
  const auto result = bytes_moved({{0, 1}, {2, 3}}, [](const Group& group) {
    auto values = Values<model::Half>::random(2 * kWhole, 1);
    group.all_reduce(view(values), Reduction::sum);
  });
  EXPECT_EQ(result.from, (std::vector<std::uint64_t>{3 * kBytes / 2, 3 * kBytes / 2}));
}

/// Rank 1 makes no link. Rank 2 has the other engine once rank 0 has named its own.
// promise: group#between-hosts
TEST(LargeBetweenHosts, AnotherEngineOnAnotherHostIsAMismatch) {
  const auto outcome = try_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job);
        Values<float> values(kWhole);
        group.state()->first_of_hosts();
        auto work = group.start().all_reduce(view(values), view(values), Reduction::sum);
        if (job.rank() == 2) {
          const auto end = Clock::now() + seconds(60);
          while (read(job.state()->slot(0).notice.text).find(", round 0") == std::string::npos) {
            ASSERT_LT(Clock::now(), end);
          }
          set_link_engine({.name = "other"});
        }
        work.wait();
      },
      on({{0, 1}, {2}}));
  for (const int rank : {0, 1, 2}) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), Mismatch);
    EXPECT_THAT(outcome.text(rank),
                HasSubstr("links between hosts are made by different engines: rank 0 has "
                          "simulated, rank 2 has other (TUTTI_LINK, tutti::use_link())"));
  }
}

template <class T>
void expect_bytes_of_the_tree(const std::vector<RankSet>& hosts, int size) {
  const std::int64_t count = 700'000 / static_cast<std::int64_t>(sizeof(T)) + 13;
  const auto inputs = random_inputs<T>(size, count);
  run_thread_ranks(
      size,
      [&](const Job& job) {
        const Group group(job);
        for (const auto reduction : {Reduction::sum, Reduction::mean, Reduction::min}) {
          if (std::is_integral_v<T> && reduction == Reduction::mean) continue;
          const auto expected = reduced(inputs, reduction);
          auto values = Values<T>(count);
          const auto& mine = inputs[static_cast<std::size_t>(job.rank())];
          std::copy(mine.data(), mine.data() + count, values.data());
          group.all_reduce(view(values), reduction);  // in place
          EXPECT_TRUE(same_values(values.data(), expected.data(), count));
        }
      },
      on(hosts));
}

// promise: group#between-hosts
TEST(LargeBetweenHosts, EveryTypeHasTheBytesOfTheTree) {
  const std::vector<RankSet> uneven = {{0, 1, 4, 5, 6}, {2, 3}, {7}};
  expect_bytes_of_the_tree<float>(uneven, 8);
  if (kSanitized) return;
  expect_bytes_of_the_tree<double>(uneven, 8);
  expect_bytes_of_the_tree<model::Half>(uneven, 8);
  expect_bytes_of_the_tree<model::BFloat>({{0, 1, 2, 3}, {4, 5, 6}}, 7);
  expect_bytes_of_the_tree<std::uint8_t>({{0, 1, 2, 3}, {4, 5, 6}}, 7);
}

TEST(LargeBetweenHosts, UnequalPartsAreGathered) {
  const std::vector<std::int64_t> counts = {200'000, 0, 3, 140'001};
  for (const auto& hosts : kHosts) {
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          const auto part = Values<std::int32_t>::random(
              counts[static_cast<std::size_t>(job.rank())], static_cast<std::uint64_t>(job.rank()));
          Values<std::int32_t> all(340'004);
          group.all_gather_variable(view(part), view(all), counts);
          std::int64_t begin = 0;
          for (std::size_t rank = 0; rank < 4; ++rank) {
            const auto wanted = Values<std::int32_t>::random(counts[rank], rank);
            EXPECT_TRUE(same_values(all.data() + begin, wanted.data(), counts[rank]));
            begin += counts[rank];
          }
        },
        on(hosts));
  }
}

TEST(LargeBetweenHosts, WhatWasStartedMovesWhileItsMembersWaitForSomethingElse) {
  run_thread_ranks(
      4,
      [](const Job& job) {
        const Group group(job);
        const Group other(job, "other");
        auto one = Values<std::int32_t>(300'000);
        auto two = Values<std::int32_t>(100'000);
        one[299'999] = job.rank();
        two[99'999] = 10 * job.rank();
        auto first = group.start().all_reduce(view(one), view(one), Reduction::sum);
        auto second = group.start().all_reduce(view(two), view(two), Reduction::sum);
        for (int i = 0; i < 100; ++i) other.barrier();
        second.wait();
        EXPECT_TRUE(first.done());
        EXPECT_EQ(one[299'999], 6);
        EXPECT_EQ(two[99'999], 60);
      },
      on({{0, 1}, {2, 3}}));
}

/// The others of its host wait until it has read what they have staged.
TEST(LargeBetweenHosts, AMemberThatIsBehindFindsAllChunksAsTheyWereStaged) {
  constexpr std::int64_t kCount = 1 << 21;
  run_thread_ranks(
      4,
      [](const Job& job) {
        const Group group(job);
        auto x = Values<float>(kCount);
        for (std::int64_t i = 0; i < kCount; ++i) {
          x[static_cast<std::size_t>(i)] = static_cast<float>(i / 1000 + job.rank());
        }
        auto work = group.start().all_reduce(view(x), view(x), Reduction::sum);
        if (job.rank() == 1) std::this_thread::sleep_for(milliseconds(100));
        work.wait();
        for (std::int64_t i = 0; i < kCount; i += 499) {
          ASSERT_EQ(x[static_cast<std::size_t>(i)], static_cast<float>(4 * (i / 1000) + 6)) << i;
        }
      },
      on({{0, 1}, {2, 3}}));
}

// promise: group#between-hosts
TEST(LargeBetweenHosts, OverTcpTheBytesAreTheSame) {
  const LogCapture log;
  const auto inputs = random_inputs<float>(4, 200'000);
  const auto expected = reduced(inputs, Reduction::sum);
  for (const auto& hosts : kHosts) {
    run_thread_ranks(
        4,
        [&](const Job& job) {
          if (job.rank() == 0) set_link_engine({});
          const Group group(job);
          Values<float> out(200'000);
          const auto& mine = inputs[static_cast<std::size_t>(job.rank())];
          for (int i = 0; i < 2; ++i) group.all_reduce(view(mine), view(out), Reduction::sum);
          EXPECT_TRUE(same_values(out.data(), expected.data(), 200'000));
        },
        on(hosts));
  }
  EXPECT_EQ(log.count("links between hosts: tcp on 127.0.0.1, "), kHosts.size());
}

/// A large all-reduce of a group that has a link already, after `harm` by rank 0.
ThreadOutcome reduce_after(const ThreadOptions& options, const std::function<std::jthread()>& harm,
                           milliseconds deadline = seconds(60)) {
  return try_thread_ranks(
      4,
      [&](const Job& job) {
        const Group group(job);
        Values<float> values(500'000);
        group.all_reduce(view(values), Reduction::sum);
        std::jthread harming;
        if (job.rank() == 0) harming = harm();
        group.barrier();
        group.all_reduce(view(values), Reduction::sum, {.label = "weights", .deadline = deadline});
        ADD_FAILURE() << "reduced over a link that is broken";
      },
      options);
}

TEST(LargeBetweenHosts, ALinkThatBreaksIsPeerLostOnAll) {
  auto options = on({{0, 1}, {2, 3}});
  const auto outcome = reduce_after(options, [&] {
    options.world->hosts()->break_links(1);
    return std::jthread();
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), PeerLost);
    EXPECT_THAT(outcome.text(rank), HasSubstr("the link to the host of rank"));
  }
}

/// The same where links of host 1 fall silent.
ThreadOutcome reduce_without_host_1(const std::vector<RankSet>& hosts) {
  const auto options = on(hosts);
  const auto harm = [&] {
    options.world->hosts()->silence_links(1);
    return std::jthread();
  };
  return reduce_after(options, harm, milliseconds(500));
}

TEST(LargeBetweenHosts, AHostFromWhichNothingComesIsNamedAtTheDeadline) {
  const auto outcome = reduce_without_host_1({{0, 1}, {2, 3}});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), Timeout);
    EXPECT_THAT(outcome.text(rank), HasSubstr("not reached all-reduce sum float32[500000]"));
  }
}

TEST(LargeBetweenHosts, WhoWaitsForALinkNamesTheHostsFromWhichNothingComes) {
  const auto outcome = reduce_without_host_1({{0}, {1}, {2}, {3}});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), AnyOf(HasSubstr("rank 1 has not reached"),
                                          HasSubstr("ranks 0 2 3 have not reached")));
  }
}

/// What is under way to another host comes from a worker that may have left.
// promise: group#between-hosts
TEST(LargeBetweenHosts, NobodyIsDoneBeforeAllHaveTheirResults) {
  auto options = on({{0}, {1}, {2}});
  const auto outcome = try_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job);
        Values<float> values(kWhole);
        group.broadcast(view(values), 0);
        group.barrier();
        if (job.rank() == 0) options.world->hosts()->silence_links(2);
        group.barrier();
        values[kWhole - 1] = job.rank() == 0 ? 7 : 0;
        auto work = group.start().broadcast(view(values), 0);
        if (job.rank() == 1) {
          const auto end = Clock::now() + seconds(40);
          while (values[kWhole - 1] != 7) {
            ASSERT_LT(Clock::now(), end);
            EXPECT_FALSE(work.done());
          }
          for (const auto later = Clock::now() + milliseconds(200); Clock::now() < later;) {
            ASSERT_FALSE(work.done());
          }
          options.world->hosts()->kill(2);
        }
        work.wait();
        ADD_FAILURE() << "succeeded, though not for all";
      },
      options);
  expect_lost(outcome, {0, 1}, 2);
}

// promise: group#between-hosts
TEST(LargeBetweenHosts, AWorkerThatDiesIsPeerLost) {
  auto options = on({{0, 1, 2}, {3}});
  const auto outcome = reduce_after(options, [&] {
    options.world->hosts()->silence_links(1);
    return std::jthread([&] {
      std::this_thread::sleep_for(milliseconds(100));  // most likely all wait for the link
      options.world->hosts()->kill(3);
    });
  });
  expect_lost(outcome, {0, 1, 2}, 3);
}

/// Rank 0 hears of the end before it comes to the making.
// promise: clusters#several-hosts
TEST(LargeBetweenHosts, AGroupThatEndsWhileItsLinkIsMadeEndsForAll) {
  auto options = on({{0, 1, 2}, {3}, {4}});
  std::atomic<bool> has_ended{false};
  std::atomic<int> over{0};
  const auto begin = Clock::now();
  const auto outcome = try_thread_ranks(
      5,
      [&](const Job& job) {
        const Group group(job);
        Values<float> values(kWhole);
        group.barrier();
        auto work = group.start().all_reduce(view(values), view(values), Reduction::sum);
        if (job.rank() == 2) {
          const auto makes_link = [&](int rank) {
            const auto text = read(job.state()->slot(rank).notice.text);
            return text.find("first of each host") != std::string::npos;
          };
          const auto end = Clock::now() + seconds(60);
          while (!makes_link(3) || !makes_link(4)) ASSERT_LT(Clock::now(), end);
          options.world->kill(2);
          while (over < 4) std::this_thread::yield();
          return;
        }
        while (job.rank() == 0 && !has_ended) std::this_thread::yield();
        try {
          if (job.rank() == 0) group.barrier();
          work.wait();
          ADD_FAILURE() << "reduced without rank 2";
        } catch (...) {
          if (job.rank() == 1) has_ended = true;
          ++over;
          throw;
        }
      },
      options);
  expect_lost(outcome, {0, 1, 3, 4}, 2);
  EXPECT_LT(Clock::now() - begin, seconds(20));
}

}  // namespace
}  // namespace tutti::test
