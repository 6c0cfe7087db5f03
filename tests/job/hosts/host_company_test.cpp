// What waits for company on its way between hosts, and for how long: messages and frames, counted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "job/hosts/ordered_hosts.h"
#include "job/ranks_and_deadlines.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;

Frame with_next(int rank, const std::string& text) {
  Frame frame = said(rank, text);
  frame.header.haste = Haste::with_next;
  return frame;
}

Frame in_round(int rank, std::uint64_t round, int members) {
  Frame frame = said(rank, "round " + std::to_string(round));
  frame.header.haste = Haste::with_all;
  frame.header.extent = round;
  frame.header.ranks = RankSet::below(members).words();
  return frame;
}

HostTraffic traffic_of(Hosts& hosts, int count) {
  HostTraffic all;
  for (int host = 0; host < count; ++host) {
    const auto& one = hosts.order(static_cast<std::size_t>(host)).traffic();
    all.messages += one.messages;
    all.frames += one.frames;
  }
  return all;
}

bool all_have(const Hosts& hosts, int count, std::size_t frames) {
  for (int host = 0; host < count; ++host) {
    if (hosts.history(static_cast<std::size_t>(host)).size() < frames) return false;
  }
  return true;
}

/// All workers of a round come, in a mixed order. False where that took so long that some of them
/// did not wait for the others.
bool run_round(Hosts& hosts, int count, int each) {
  const int size = count * each;
  const auto begin = Clock::now();
  for (int rank = 0; rank < size; ++rank) {
    const int mixed = static_cast<int>((rank * 389L + 5) % size);  // 389 divides no size
    hosts.order(static_cast<std::size_t>(mixed / each)).submit(in_round(mixed, 7, size));
  }
  if (Clock::now() - begin >= kHostCompany) return false;
  hosts.serve_until([&] { return all_have(hosts, count, static_cast<std::size_t>(size)); });
  return true;
}

/// Whatever the number of workers.
// promise: links#what-travels-between-hosts
TEST(HostCompany, ARoundIsOneMessageFromEachHostAndOneToIt) {
  for (const auto& [count, each] :
       {std::pair{2, 1}, {2, 40}, {3, 1}, {16, 4}, {65, 1}, {128, 1}, {128, 8}}) {
    const int size = count * each;
#ifdef TUTTI_SANITIZED
    if (size > 256) continue;  // the last come when the first wait no longer
#endif
    const Watchdog watchdog("a round", std::chrono::seconds(60));
    auto all = std::make_unique<Hosts>(even(count, each));
    while (!run_round(*all, count, each)) all = std::make_unique<Hosts>(even(count, each));
    Hosts& hosts = *all;
    const auto traffic = traffic_of(hosts, count);
    const auto others = static_cast<std::uint64_t>(count - 1);
    // One message has the frames of some 340 workers.
    const auto most = 2 * others + others * static_cast<std::uint64_t>(size) / 256;
    EXPECT_LE(traffic.messages, most) << count << " hosts of " << each;
    EXPECT_EQ(hosts.history(0), hosts.history(static_cast<std::size_t>(count - 1)));
    if (size <= 256) {
      EXPECT_EQ(traffic.messages, 2 * others);
    }
  }
}

TEST(HostCompany, WhatIsNotOfARoundLeavesAtOnceWithAllBeforeIt) {
  Hosts hosts(even(2, 2));
  hosts.order(1).submit(with_next(2, "a"));
  hosts.order(1).submit(in_round(2, 1, 4));
  hosts.serve(Clock::now());
  EXPECT_THAT(hosts.history(0), ElementsAre());
  hosts.order(1).submit(said(3, "b"));
  hosts.serve_until([&] { return hosts.history(1).size() == 3; });
  EXPECT_THAT(hosts.history(0), ElementsAre("2: a", "2: round 1", "3: b"));
  EXPECT_EQ(traffic_of(hosts, 2).messages, 2);
  EXPECT_EQ(traffic_of(hosts, 2).frames, 3 + 1);  // one confirmation of all three
}

TEST(HostCompany, NothingWaitsForLongerThanItMay) {
  Hosts hosts(even(3, 1));
  const auto begin = Clock::now();
  hosts.order(1).submit(with_next(1, "a"));
  hosts.order(2).submit(in_round(2, 1, 3));  // rank 0 does not come
  hosts.order(2).submit(in_round(2, 2, 3));
  hosts.serve_until([&] { return all_have(hosts, 3, 3); });
  const auto took = Clock::now() - begin;
  EXPECT_GE(took, kHostCompany);
  EXPECT_LT(took, 2 * kHostCompany + std::chrono::seconds(1));  // on a loaded machine
  EXPECT_EQ(hosts.history(1), hosts.history(0));
  EXPECT_EQ(hosts.history(2), hosts.history(0));
}

/// Else the hub would sleep through it.
TEST(HostCompany, WhoWaitsForSocketsIsWokenInTime) {
  Hosts hosts(even(2, 1));
  const auto timeout_of = [&] {
    std::vector<pollfd> polled;
    int timeout_ms = -1;
    hosts.order(0).add_polled(polled, timeout_ms);
    EXPECT_EQ(polled.size(), 1);
    EXPECT_EQ(polled.at(0).events, POLLIN);
    return timeout_ms;
  };
  EXPECT_GT(timeout_of(), kHostCompany.count());
  hosts.order(0).submit(with_next(0, "a"));
  EXPECT_LE(timeout_of(), kHostCompany.count());
}

TEST(HostCompany, ALostHostIsToldAtOnceThoughOthersWait) {
  Hosts hosts(even(3, 1));
  hosts.order(0).submit(in_round(0, 1, 3));
  hosts.lose(1);
  hosts.serve_until([&] { return all_have(hosts, 1, 2); });
  hosts.order(2).serve(Clock::now());
  EXPECT_THAT(hosts.history(2), ElementsAre("0: round 1", "1 is over"));
}

TEST(HostCompany, LargeDataDoNotWait) {
  Hosts hosts(even(2, 1));
  const Watchdog watchdog("large data", std::chrono::seconds(20));
  const auto begin = Clock::now();
  Frame large = with_next(1, "");
  large.parcel.bytes.assign(300'000, 'x');
  hosts.order(1).submit(std::move(large));
  while (hosts.history(0).empty()) {
    hosts.order(1).serve(begin);  // no time passes
    hosts.order(0).serve(begin);
  }
  EXPECT_EQ(hosts.history(0).front(), "1:  + 300000 bytes");
}

/// A worker may be wrong about its rounds: that costs time alone.
TEST(HostCompany, MoreRoundsThanAreRememberedComeToTheirEnd) {
  Hosts hosts(even(2, 1));
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) hosts.order(1).submit(in_round(1, 10U + round, 2));
  for (int round = 0; round < kRounds; ++round) hosts.order(0).submit(in_round(0, 10U + round, 2));
  hosts.serve_until([&] { return all_have(hosts, 2, 2 * kRounds); });
  EXPECT_EQ(hosts.history(1), hosts.history(0));
}

}  // namespace
}  // namespace tutti::test
