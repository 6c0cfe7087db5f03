// What only the simulated link has: its clock, its paths, its deaths. One thread drives all peers.

#include "support/simulated_link.h"

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/check.h"
#include "comm/link/link_collectives.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// All peers' links, driven by this thread, and a list of what ended when.
struct Drive {
  explicit Drive(SimulatedOptions options) : network(options) {
    for (int peer = 0; peer < options.peers; ++peer) links.push_back(network.link(peer));
  }
  void send(int from, int to, int lane, std::size_t size, const std::string& name) {
    links[from]->send(lane, to, std::span(memory).first(size), note("sent " + name));
  }
  void receive(int to, int from, int lane, std::size_t size, const std::string& name) {
    links[to]->receive(lane, from, std::span(received).first(size), note("got " + name));
  }
  Link::Done note(std::string name) {
    return [this, name](const LinkError* error) {
      events.push_back(fmt::format("{} {}{}", network.now() / microseconds(1), name,
                                   error == nullptr ? "" : ": " + error->text));
    };
  }
  std::vector<std::byte> memory{std::vector<std::byte>(10000, std::byte{5})};
  std::vector<std::byte> received{std::vector<std::byte>(10000)};
  std::vector<std::string> events;
  SimulatedNetwork network;
  std::vector<std::unique_ptr<Link>> links;
};

TEST(SimulatedLink, AMessageTakesLatencyAndItsBytes) {
  Drive drive({.modelled = true, .path = {microseconds(100), {}, 1e6}});
  drive.receive(1, 0, 0, 1000, "a");
  drive.send(0, 1, 0, 1000, "a");
  EXPECT_THAT(drive.events, IsEmpty());
  drive.network.run_until_idle();
  EXPECT_THAT(drive.events, ElementsAre("1100 sent a", "1100 got a"));
  EXPECT_EQ(drive.received[999], std::byte{5});
}

TEST(SimulatedLink, MessagesOfADirectionLeaveOneAfterTheOther) {
  Drive drive({.lanes = 2, .modelled = true, .path = {microseconds(100), {}, 1e6}});
  for (const int lane : {0, 1}) {
    drive.receive(1, 0, lane, 1000, fmt::format("{}", lane));
    drive.send(0, 1, lane, 1000, fmt::format("{}", lane));
  }
  drive.receive(0, 1, 0, 500, "back");
  drive.send(1, 0, 0, 500, "back");
  drive.network.run_until_idle();
  EXPECT_THAT(drive.events, ElementsAre("600 got back", "600 sent back", "1100 sent 0",
                                        "1100 got 0", "2100 sent 1", "2100 got 1"));
}

TEST(SimulatedLink, TheTopologyIsPerPair) {
  Drive drive({.peers = 3, .modelled = true, .path_of = [](int from, int to) {
                 return SimulatedPath{microseconds(10 * from + to)};
               }});
  drive.receive(2, 1, 0, 1, "far");
  drive.receive(1, 0, 0, 1, "near");
  drive.send(1, 2, 0, 1, "far");
  drive.send(0, 1, 0, 1, "near");
  drive.network.run_until_idle();
  EXPECT_THAT(drive.events, ElementsAre("1 sent near", "1 got near", "12 sent far", "12 got far"));
}

/// Names of 40 messages over 4 lanes in the order of their arrival.
std::vector<std::string> arrivals(std::uint64_t seed, bool overtake) {
  Drive drive({.lanes = 4,
               .modelled = true,
               .seed = seed,
               .path = {microseconds(10), microseconds(100)},
               .lanes_overtake = overtake});
  for (int k = 0; k < 40; ++k) drive.receive(1, 0, k % 4, 1, std::to_string(k));
  for (int k = 0; k < 40; ++k)
    drive.links[0]->send(k % 4, 1, std::span(drive.memory).first(1), [](auto*) {});
  drive.network.run_until_idle();
  return drive.events;
}

TEST(SimulatedLink, TheSeedDecidesWhatOvertakes) {
  EXPECT_EQ(arrivals(1, true), arrivals(1, true));
  EXPECT_NE(arrivals(1, true), arrivals(2, true));
  const auto number = [](const std::string& event) {
    return std::stoi(event.substr(event.rfind(' ')));
  };
  int overtaken = 0;
  std::map<int, int> last;
  int highest = -1;
  for (const auto& event : arrivals(1, true)) {
    const int k = number(event);
    EXPECT_GT(k, last.contains(k % 4) ? last[k % 4] : -1) << "a lane keeps its order";
    last[k % 4] = k;
    if (k < highest) ++overtaken;
    highest = std::max(highest, k);
  }
  EXPECT_GT(overtaken, 0);
  highest = -1;
  for (const auto& event : arrivals(1, false)) {
    EXPECT_GT(number(event), highest);
    highest = number(event);
  }
}

TEST(SimulatedLink, WhatArrivedEarlyWaitsForItsReceive) {
  Drive drive({.modelled = true, .path = {microseconds(10)}});
  drive.send(0, 1, 0, 8, "a");
  drive.network.at(microseconds(50), [&] { drive.receive(1, 0, 0, 8, "a"); });
  drive.network.run_until_idle();
  EXPECT_THAT(drive.events, ElementsAre("50 got a", "50 sent a"));
}

TEST(SimulatedLink, AKilledPeerIsLostAfterTheNotice) {
  Drive drive(
      {.peers = 3, .modelled = true, .path = {milliseconds(1)}, .notice = milliseconds(25)});
  drive.receive(0, 1, 0, 8, "late");
  drive.receive(0, 2, 0, 8, "other");
  drive.network.at(microseconds(1), [&] {
    drive.send(1, 0, 0, 8, "late");
    drive.network.kill(1);
    drive.send(2, 0, 0, 8, "other");
    drive.send(1, 0, 0, 8, "dead");
  });
  drive.network.run_until_idle();
  EXPECT_THAT(drive.events,
              ElementsAre("1 sent late: peer 1 has ended", "1 sent dead: peer 1 itself is dead",
                          "1001 got other", "1001 sent other", "25001 got late: peer 1 has ended"));
}

TEST(SimulatedLink, TheClockWaitsForAThreadThatDoesNot) {
  SimulatedNetwork network({.modelled = true, .path = {microseconds(7)}});
  const auto first = network.link(0);
  auto second = network.link(1);
  network.at(milliseconds(50), [] {});
  nanoseconds arrived{0};
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(50));
    PendingOperation sent;
    const std::byte byte{9};
    second->send(0, 0, {&byte, 1}, sent.done());
    EXPECT_TRUE(sent.wait(*second, Deadline::after(Clock::now(), std::chrono::seconds(60))));
    second.reset();
  });
  std::byte byte{};
  std::atomic<bool> is_there{false};
  first->receive(0, 1, {&byte, 1}, [&](auto*) {
    arrived = network.now();
    is_there = true;
  });
  const auto end = Deadline::after(Clock::now(), std::chrono::seconds(60));
  while (!is_there && Clock::now() < end.at) first->progress(end);
  late.join();
  EXPECT_EQ(arrived, microseconds(7));
  EXPECT_EQ(byte, std::byte{9});
}

TEST(SimulatedLink, WithASilentPeerOnlyTheEndOfTheLinkEndsAnything) {
  for (const bool modelled : {false, true}) {
    Drive drive({.modelled = modelled});
    drive.network.silence(1);
    drive.receive(0, 1, 0, 8, "a");
    drive.send(1, 0, 0, 8, "a");
    drive.network.run_until_idle();
    EXPECT_THAT(drive.events, IsEmpty());
    drive.links[0].reset();
    EXPECT_THAT(drive.events, Contains("0 got a: peer 0 has closed its link"));
    drive.links.clear();
    EXPECT_EQ(drive.events.size(), 2U);
  }
}

TEST(SimulatedLink, CountsWhatArrived) {
  Drive drive({.peers = 3});
  for (int k = 0; k < 3; ++k) {
    drive.receive(1, 0, 0, 10 * k, "");
    drive.send(0, 1, 0, 10 * k, "");
  }
  drive.send(2, 1, 0, 5, "");
  EXPECT_EQ(drive.network.delivered(0, 1).messages, 3U);
  EXPECT_EQ(drive.network.delivered(0, 1).bytes, 30U);
  EXPECT_EQ(drive.network.delivered(1, 0).messages, 0U);
  EXPECT_EQ(drive.network.delivered(2, 1).messages, 0U);
}

TEST(SimulatedLink, APeerIsThereOnce) {
  SimulatedNetwork network({});
  const auto link = network.link(0);
  EXPECT_THROW(network.link(0), InternalError);
}

TEST(LinkSelfTest, NamesThePeersThatDoNotAnswer) {
  SimulatedNetwork network({.peers = 4});
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 0; peer < 4; ++peer) links.push_back(network.link(peer));
  std::vector<std::byte> bytes(64);
  links[2]->receive(0, 0, bytes, [](auto*) {});
  links[2]->send(0, 0, bytes, [](auto*) {});
  try {
    self_test(*links[0], Deadline::after(Clock::now(), milliseconds(50)));
    ADD_FAILURE() << "no error";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("no answer in time from peers 1 3"));
  }
}

TEST(LinkSelfTest, FindsOtherBytesAndLostPeers) {
  SimulatedNetwork network({.peers = 2, .lanes = 2});
  const auto link = network.link(0);
  auto other = network.link(1);
  std::vector<std::byte> bytes(64);
  for (const int lane : {0, 1}) {
    other->receive(lane, 0, bytes, [](auto*) {});
    other->send(lane, 0, bytes, [](auto*) {});
  }
  try {
    self_test(*link, Deadline::after(Clock::now(), milliseconds(1000)));
    ADD_FAILURE() << "no error";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), HasSubstr("other bytes from peer 1 on lane 0 than were sent"));
  }
  other.reset();
  try {
    self_test(*link, Deadline::never());
    ADD_FAILURE() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("with peer 1 failed on lane 0: peer 1 has closed"));
  }
}

}  // namespace
}  // namespace tutti::test
