// The one order of several hosts, without brokers: orders that are served by hand.

#include "job/hosts/host_order.h"

#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "job/hosts/ordered_hosts.h"
#include "support/watchdog.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(HostOrder, EveryHostSeesTheSameHistory) {
  Hosts hosts({{0}, {1, 2}, {3}});
  constexpr int kEach = 200;
  for (int k = 0; k < kEach; ++k) {
    hosts.order(1).submit(said(1 + k % 2, std::to_string(k)));
    hosts.order(2).submit(said(3, std::to_string(k)));
    hosts.order(0).submit(said(0, std::to_string(k)));
    if (k % 3 == 0) hosts.serve();
  }
  hosts.serve_until([&] {
    for (std::size_t h = 0; h < 3; ++h) {
      if (hosts.history(h).size() < 3 * kEach) return false;
    }
    return true;
  });
  EXPECT_EQ(hosts.history(1), hosts.history(0));
  EXPECT_EQ(hosts.history(2), hosts.history(0));
  // What one host submits keeps its order.
  int next = 0;
  for (const auto& line : hosts.history(2)) {
    if (!line.starts_with("3: ")) continue;
    EXPECT_EQ(line, "3: " + std::to_string(next++));
  }
}

TEST(HostOrder, AWorkersOwnHostSeesItsFrameOnceItIsInOrder) {
  Hosts hosts({{0}, {1}});
  hosts.order(1).submit(said(1, "mine"));
  EXPECT_TRUE(hosts.history(1).empty());
  hosts.serve_until([&] { return !hosts.history(1).empty(); });
  EXPECT_THAT(hosts.history(0), ElementsAre("1: mine"));
}

TEST(HostOrder, WhatAHostSubmitsDoesNotTravelBackToIt) {
  Hosts hosts({{0}, {1, 2}, {3}});
  Frame large = said(2, "mine");
  large.parcel.bytes.assign(50'000, 'x');
  hosts.order(1).submit(std::move(large));
  const Watchdog watchdog("a frame at the hub", seconds(20));
  while (hosts.history(0).empty()) hosts.order(0).serve(Clock::now());
  EXPECT_EQ(hosts.on_the_way_to(1), sizeof(FrameHeader));
  EXPECT_EQ(hosts.on_the_way_to(2), sizeof(FrameHeader) + 4 + 50'000);
  hosts.serve_until([&] { return !hosts.history(1).empty() && !hosts.history(2).empty(); });
  for (std::size_t h = 0; h < 3; ++h) {
    EXPECT_THAT(hosts.history(h), ElementsAre("2: mine + 50000 bytes")) << "host " << h;
  }
}

TEST(HostOrder, WhatAHostKeepsHasItsPlaceAmongTheFramesOfOthers) {
  Hosts hosts({{0}, {1}, {2}});
  hosts.order(1).submit(said(1, "first"));
  hosts.order(2).submit(said(2, "second"));
  hosts.order(1).submit(said(1, "third"));
  hosts.order(0).serve(Clock::now());  // hears host 1, then host 2
  hosts.serve_until([&] { return hosts.history(1).size() == 3 && hosts.history(2).size() == 3; });
  EXPECT_THAT(hosts.history(1), ElementsAre("1: first", "1: third", "2: second"));
  EXPECT_EQ(hosts.history(0), hosts.history(1));
  EXPECT_EQ(hosts.history(2), hosts.history(1));
}

TEST(HostOrder, WhoseConnectionClosesIsOverOnAllHosts) {
  Hosts hosts({{0}, {1, 2}, {3}});
  hosts.order(1).submit(said(2, "last"));
  hosts.lose(1);
  hosts.serve_until([&] { return hosts.history(2).size() == 3; });
  EXPECT_THAT(hosts.history(2), ElementsAre("2: last", "1 is over", "2 is over"));
  EXPECT_EQ(hosts.history(0), hosts.history(2));
}

TEST(HostOrder, WithoutTheHubWhatWasSubmittedTakesEffectHere) {
  Hosts hosts({{0}, {1}, {2}});
  hosts.order(1).submit(said(1, "on its way"));
  hosts.lose(0);
  hosts.serve_until([&] { return hosts.history(1).size() == 3; });
  EXPECT_THAT(hosts.history(1), ElementsAre("0 is over", "2 is over", "1: on its way"));
  hosts.order(1).submit(said(1, "alone"));
  EXPECT_EQ(hosts.history(1).back(), "1: alone");
}

// promise: clusters#a-worker-or-a-host-that-dies
TEST(HostOrder, ASilentHostIsLostWithinTwoSeconds) {
  Hosts hosts({{0}, {1}, {2}});
  const Watchdog watchdog("a silent host", seconds(20));
  const auto begin = Clock::now();
  while (hosts.history(0).empty()) {
    hosts.order(0).serve(Clock::now());
    hosts.order(2).serve(Clock::now());  // host 1 says nothing
    std::this_thread::sleep_for(milliseconds(20));
  }
  const auto took = Clock::now() - begin;
  EXPECT_THAT(hosts.history(0), ElementsAre("1 is over"));
  EXPECT_GE(took, kHostSilence);
  EXPECT_LT(took, seconds(2) + milliseconds(500));  // on a loaded machine
}

TEST(HostOrder, WhoWasStoppedItselfLosesNobody) {
  Hosts hosts({{0}, {1}});
  hosts.serve();
  hosts.order(0).serve(Clock::now() + seconds(5));  // as after a stop of that long
  EXPECT_TRUE(hosts.history(0).empty());
  EXPECT_TRUE(hosts.order(0).is_connected());
}

TEST(HostOrder, BeatsKeepAnIdleHost) {
  Hosts hosts({{0}, {1}});
  const Watchdog watchdog("idle hosts", seconds(20));
  const auto end = Clock::now() + kHostSilence + milliseconds(500);
  while (Clock::now() < end) {
    hosts.serve();
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(hosts.history(0).empty());
  EXPECT_TRUE(hosts.history(1).empty());
}

TEST(HostOrder, AHostSpeaksForItsOwnWorkersAlone) {
  Hosts hosts({{0}, {1}, {2}});
  hosts.order(1).submit(said(2, "a lie"));
  hosts.serve_until([&] { return !hosts.history(0).empty(); });
  EXPECT_THAT(hosts.history(0), ElementsAre("1 is over"));
}

/// What host `to` of two makes of a frame that its peer's broker would not send.
History after_nonsense(int to, const Frame& frame, bool submits) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const FileDescriptor peer(ends[0]);
  BrokerHosts place;
  place.map = HostMap::of(std::vector<RankSet>{{0}, {1, 2}});
  place.here = to;
  place.connections.resize(2);
  place.connections[static_cast<std::size_t>(1 - to)] = FileDescriptor(ends[1]);
  History history;
  HostOrder order(std::move(place),
                  [&](const Frame& obeyed) { history.push_back(line_of(obeyed)); });
  if (submits) order.submit(said(1, "mine"));
  FrameWriter writer;
  writer.push(frame.header, frame.text, nullptr, nullptr);
  writer.write(peer.get());
  const Watchdog watchdog("nonsense", seconds(20));
  while (order.is_connected()) order.serve(Clock::now());
  return history;
}

TEST(HostOrder, AHubThatConfirmsWhatWasNotSubmittedIsLost) {
  Frame yours;
  yours.header.kind = FrameHeader::yours;
  yours.header.origin = 1;
  EXPECT_THAT(after_nonsense(1, yours, false), ElementsAre("0 is over"));
  yours.header.origin = 2;
  EXPECT_THAT(after_nonsense(1, yours, true), ElementsAre("0 is over", "1: mine"));
  // Own frames come as a word alone.
  EXPECT_THAT(after_nonsense(1, said(1, "mine"), true), ElementsAre("0 is over", "1: mine"));
}

TEST(HostOrder, NobodyButTheHubConfirms) {
  Frame yours;
  yours.header.kind = FrameHeader::yours;
  yours.header.origin = 1;
  EXPECT_THAT(after_nonsense(0, yours, false), ElementsAre("1 is over", "2 is over"));
}

}  // namespace
}  // namespace tutti::test
