// The conformance suite over TCP, all peers in one process over 127.0.0.1, and what strangers do.

#include <sys/socket.h>

#include <barrier>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/link/link_conformance.h"
#include "comm/link/link_conformance_failure.h"
#include "comm/link/tcp_link.h"
#include "job/hosts/tcp_socket.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// What participants that are threads exchange.
class Meeting {
 public:
  explicit Meeting(int peers) : texts_(static_cast<std::size_t>(peers)), barrier_(peers) {}
  std::vector<std::string> exchange(int peer, const std::string& mine) {
    texts_[static_cast<std::size_t>(peer)] = mine;
    barrier_.arrive_and_wait();
    auto all = texts_;
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

std::unique_ptr<Link> make(Meeting& meeting, int peer, int peers, int lanes,
                           std::chrono::milliseconds patience = seconds(60)) {
  return make_tcp_link(
      {.name = "tested",
       .self = peer,
       .peers = peers,
       .lanes = lanes,
       .address = "127.0.0.1",
       .deadline = Deadline::after(Clock::now(), patience),
       .exchange = [&](const std::string& mine) { return meeting.exchange(peer, mine); }});
}

class TcpWorld final : public ThreadLinkWorld {
 protected:
  Make start(int peers, int lanes) override {
    const auto meeting = std::make_shared<Meeting>(peers);
    return [=](int peer) { return make(*meeting, peer, peers, lanes); };
  }
};

INSTANTIATE_TEST_SUITE_P(Tcp, LinkConformance,
                         ::testing::Values(LinkWorldCase{
                             "Threads", [] { return std::make_unique<TcpWorld>(); }}),
                         name_of);

int port_of(const std::string& place) { return std::stoi(place); }

FileDescriptor connected_to(int port) {
  std::string problem;
  auto socket = begin_connection(resolve("127.0.0.1", port, problem).front(), nullptr);
  EXPECT_TRUE(socket);
  return socket;
}

/// Strangers come to peer 0 before the others do: one says nothing, one something else, one is
/// gone.
TEST(TcpLink, StrangersHoldNobodyUpAndAreHungUpOn) {
  Meeting meeting(2);
  std::vector<FileDescriptor> strangers;
  std::thread other([&] {
    const auto exchange = [&](const std::string& mine) {
      auto all = meeting.exchange(1, mine);
      if (mine.empty() || !strangers.empty()) return all;
      for (int i = 0; i < 3; ++i) strangers.push_back(connected_to(port_of(all[0])));
      const std::string text(64, 'x');
      std::this_thread::sleep_for(milliseconds(20));
      ::send(strangers[1].get(), text.data(), text.size(), MSG_NOSIGNAL);
      strangers[2].reset();
      return all;
    };
    auto link = make_tcp_link({.name = "tested",
                               .self = 1,
                               .peers = 2,
                               .lanes = 3,
                               .address = "127.0.0.1",
                               .deadline = Deadline::after(Clock::now(), seconds(60)),
                               .exchange = exchange});
    PendingOperation sent;
    const std::byte seven{7};
    link->send(2, 0, {&seven, 1}, sent.done());
    EXPECT_TRUE(sent.wait(*link, Deadline::after(Clock::now(), seconds(60))));
    meeting.exchange(1, "");
  });
  {
    auto link = make(meeting, 0, 2, 3);
    PendingOperation received;
    std::byte got{};
    link->receive(2, 1, {&got, 1}, received.done());
    EXPECT_TRUE(received.wait(*link, Deadline::after(Clock::now(), seconds(60))));
    EXPECT_EQ(received.error(), nullptr);
    EXPECT_EQ(got, std::byte{7});
    meeting.exchange(0, "");
  }
  other.join();
  for (int i = 0; i < 2; ++i) {
    char byte = 0;
    const auto got = [&] {
      for (const auto end = Clock::now() + seconds(20); Clock::now() < end;) {
        const auto bytes = ::recv(strangers[static_cast<std::size_t>(i)].get(), &byte, 1, 0);
        if (bytes >= 0 || errno != EAGAIN) return bytes;
        std::this_thread::sleep_for(milliseconds(1));
      }
      return ssize_t{1};
    };
    EXPECT_LE(got(), 0) << i;
  }
}

TEST(TcpLink, APeerThatIsNotReachedIsNamedByItsAddress) {
  Meeting meeting(2);
  std::thread other([&] { meeting.exchange(0, "1 0 0 127.0.0.1"); });
  try {
    make(meeting, 1, 2, 1);
    ADD_FAILURE() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a link between hosts cannot reach 127.0.0.1:1: "),
                                    HasSubstr("Connection refused")));
  }
  other.join();
}

TEST(TcpLink, APeerThatDoesNotConnectIsMissedAtTheDeadline) {
  Meeting meeting(2);
  std::thread other([&] {
    meeting.exchange(1, "1 0 0 127.0.0.1");
    meeting.exchange(1, "");
  });
  try {
    make(meeting, 0, 2, 3, milliseconds(200));
    ADD_FAILURE() << "no error";
  } catch (const Timeout& error) {
    EXPECT_STREQ(error.what(),
                 "a link between hosts was not made in time: 0 connections to, and 3 from other "
                 "hosts are missing");
  }
  other.join();
}

TEST(TcpLink, WhatIsNoPlaceIsCorrupt) {
  Meeting meeting(2);
  std::thread other([&] { meeting.exchange(0, "nowhere"); });
  EXPECT_THROW(make(meeting, 1, 2, 1), Corrupt);
  other.join();
}

}  // namespace
}  // namespace tutti::test
