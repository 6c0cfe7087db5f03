// The one order of several hosts, without brokers: orders that are served by hand.

#include "job/hosts/host_order.h"

#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/watchdog.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

/// What a host obeys: "2: text" of rank 2's frames, "2 is over" of its end.
using History = std::vector<std::string>;

Frame said(int rank, const std::string& text) {
  Frame frame;
  frame.header.kind = FrameHeader::store;
  frame.header.origin = rank;
  frame.text = text;
  return frame;
}

class Hosts {
 public:
  explicit Hosts(const std::vector<RankSet>& ranks) : histories_(ranks.size()) {
    std::vector<BrokerHosts> places(ranks.size());
    for (std::size_t h = 0; h < ranks.size(); ++h) {
      places[h].map = HostMap::of(ranks);
      places[h].here = static_cast<int>(h);
      places[h].connections.resize(ranks.size());
      if (h == 0) continue;
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      places[0].connections[h] = FileDescriptor(ends[0]);
      places[h].connections[0] = FileDescriptor(ends[1]);
    }
    for (std::size_t h = 0; h < ranks.size(); ++h) {
      orders_.push_back(std::make_unique<HostOrder>(std::move(places[h]), [this, h](Frame frame) {
        const auto rank = std::to_string(frame.header.origin);
        histories_[h].push_back(frame.header.kind == FrameHeader::over ? rank + " is over"
                                                                       : rank + ": " + frame.text);
      }));
    }
  }
  HostOrder& order(std::size_t host) { return *orders_[host]; }
  const History& history(std::size_t host) const { return histories_[host]; }
  void lose(std::size_t host) { orders_[host].reset(); }
  /// Serves all hosts in turn.
  void serve(Clock::time_point now = Clock::now()) {
    for (auto& order : orders_) {
      if (order) order->serve(now);
    }
  }
  void serve_until(const std::function<bool()>& done) {
    const Watchdog watchdog("hosts in order", seconds(20));
    while (!done()) serve();
  }

 private:
  std::vector<History> histories_;
  std::vector<std::unique_ptr<HostOrder>> orders_;
};

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

}  // namespace
}  // namespace tutti::test
