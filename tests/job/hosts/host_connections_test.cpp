// How hosts find one another over real sockets of this machine, a thread for each host, and what
// each of them is told when something is wrong.

#include "job/hosts/host_connections.h"
#include "job/ranks_and_deadlines.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "job/hosts/host_messages.h"
#include "job/hosts/signed_channel.h"
#include "job/hosts/tcp_socket.h"
#include "support/process_ranks.h"
#include "support/text_of.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kToken = "correct horse battery staple";

HostIntroduction host(const std::string& name, int size, std::vector<int> ranks) {
  return {.run = "1234",
          .token = kToken,
          .name = name,
          .size = size,
          .ranks = std::move(ranks),
          .facts = "frame 2"};
}

/// What the join of one host ended in.
struct Outcome {
  std::optional<ConnectedHosts> connected;
  std::string error;  ///< "Timeout: …"
  int rank = -1;      ///< of PeerLost
};

template <class Join>
Outcome outcome_of(const Join& join) {
  const auto failed = [](const char* kind, const std::exception& error, int rank = -1) {
    return Outcome{{}, fmt::format("{}: {}", kind, error.what()), rank};
  };
  try {
    return {join(), "", -1};
  } catch (const PeerLost& error) {
    return failed("PeerLost", error, error.rank());
  } catch (const Mismatch& error) {
    return failed("Mismatch", error);
  } catch (const Timeout& error) {
    return failed("Timeout", error);
  } catch (const InvalidArgument& error) {
    return failed("InvalidArgument", error);
  } catch (const std::exception& error) {
    return failed("another error", error);
  }
}

std::future<Outcome> come(const std::string& address, int port, HostIntroduction own,
                          milliseconds time = seconds(30)) {
  return std::async(std::launch::async, [=] {
    return outcome_of([&] { return connect_to_hub({address, port}, own, within(time)); });
  });
}

std::future<Outcome> serve(HubListener& listener, HostIntroduction own,
                           milliseconds time = seconds(30)) {
  return std::async(std::launch::async, [&listener, own, time] {
    return outcome_of([&] { return listener.accept_all(own, within(time)); });
  });
}

std::string list_of(const ConnectedHosts& connected) {
  std::string text = connected.run;
  for (const auto& each : connected.hosts) text += ", " + host_text(each.name, each.ranks);
  return text;
}

std::string read_byte(const FileDescriptor& socket) {
  pollfd polled{socket.get(), POLLIN, 0};
  if (::poll(&polled, 1, 20'000) <= 0) return "nothing came";
  char bytes[16];
  const auto got = ::recv(socket.get(), bytes, sizeof bytes, 0);
  return got < 0 ? "an error" : std::string(bytes, static_cast<std::size_t>(got));
}

/// A connection to the hub by hand.
FileDescriptor stranger(int port) {
  std::string problem;
  auto socket = begin_connection(resolve("127.0.0.1", port, problem).at(0), nullptr);
  pollfd polled{socket.get(), POLLOUT, 0};
  EXPECT_EQ(::poll(&polled, 1, 20'000), 1);
  EXPECT_EQ(connection_error(socket), 0);
  return socket;
}

/// Reads until something comes, or the time is up.
SignedChannel::Status read_from(SignedChannel& channel, SignedMessage& message) {
  const auto end = within(seconds(20));
  while (Clock::now() < end.at) {
    channel.write();
    const auto status = channel.read(message);
    if (status != SignedChannel::Status::again) return status;
    pollfd polled{channel.socket(), POLLIN, 0};
    ::poll(&polled, 1, 20);
  }
  return SignedChannel::Status::again;
}

/// A host that has introduced itself, and waits.
SignedChannel introduced(int port, const HostIntroduction& own) {
  SignedChannel channel(stranger(port), SignedChannel::Side::host, own.token);
  channel.push(static_cast<std::uint32_t>(HostMessage::introduction), bytes_of(own));
  SignedMessage message;
  EXPECT_EQ(read_from(channel, message), SignedChannel::Status::done);
  EXPECT_EQ(static_cast<HostMessage>(message.kind), HostMessage::waiting);
  return channel;
}

TEST(HostConnections, AllHostsLearnTheSameListAndEachHasASocketToTheHub) {
  const std::vector<std::vector<std::vector<int>>> jobs = {
      {{0, 1, 2}}, {{0, 1}, {2, 3}}, {{0, 3}, {2, 5}, {1, 4, 6}}, {{0}, {3}, {1}, {4}, {2}}};
  for (const std::string address : {"127.0.0.1", "::1", "localhost"}) {
    for (const auto& ranks : jobs) {
      int size = 0;
      for (const auto& each : ranks) size += static_cast<int>(each.size());
      HubListener listener(address, 0);
      std::vector<std::future<Outcome>> others;
      for (std::size_t i = 1; i < ranks.size(); ++i)
        others.push_back(
            come(address, listener.port(), host(fmt::format("h{}", i), size, ranks[i])));
      auto hub = serve(listener, host("h0", size, ranks[0])).get();
      ASSERT_TRUE(hub.connected) << hub.error;
      std::string expected = "1234";
      auto by_rank = ranks;
      std::ranges::sort(by_rank);
      for (const auto& each : by_rank) {
        const auto i = std::ranges::find(ranks, each) - ranks.begin();
        expected += ", " + host_text(fmt::format("h{}", i), each);
      }
      EXPECT_EQ(list_of(*hub.connected), expected);
      EXPECT_FALSE(hub.connected->hosts[0].socket);
      for (std::size_t i = 0; i < others.size(); ++i) {
        auto other = others[i].get();
        ASSERT_TRUE(other.connected) << other.error;
        EXPECT_EQ(list_of(*other.connected), expected);
        const auto& to_hub = other.connected->hosts[0].socket;
        const auto name = fmt::format("h{}", i + 1);
        const auto& from_hub =
            std::ranges::find(hub.connected->hosts, name, &HostConnection::name)->socket;
        ASSERT_EQ(::send(to_hub.get(), name.data(), name.size(), 0), 2);
        EXPECT_EQ(read_byte(from_hub), name);
        ASSERT_EQ(::send(from_hub.get(), name.data(), name.size(), 0), 2);
        EXPECT_EQ(read_byte(to_hub), name);
        for (const auto* socket : {&to_hub, &from_hub}) {
          EXPECT_NE(::fcntl(socket->get(), F_GETFL) & O_NONBLOCK, 0);
          EXPECT_NE(::fcntl(socket->get(), F_GETFD) & FD_CLOEXEC, 0);
          for (const auto& [level, option] : {std::pair<int, int>(IPPROTO_TCP, TCP_NODELAY),
                                              std::pair<int, int>(SOL_SOCKET, SO_KEEPALIVE)}) {
            int value = 0;
            socklen_t bytes = sizeof value;
            ::getsockopt(socket->get(), level, option, &value, &bytes);
            EXPECT_EQ(value, 1);
          }
        }
      }
    }
  }
}

TEST(HostConnections, AHostThatComesBeforeTheHubWaitsForIt) {
  int port = 0;
  {
    HubListener listener("127.0.0.1", 0);
    port = listener.port();
  }
  auto other = come("127.0.0.1", port, host("b", 2, {1}));
  EXPECT_EQ(other.wait_for(milliseconds(200)), std::future_status::timeout);
  HubListener listener("127.0.0.1", port);
  EXPECT_TRUE(serve(listener, host("a", 2, {0})).get().connected);
  EXPECT_TRUE(other.get().connected);
}

TEST(HostConnections, TheHubGivesTheRunToHostsThatHaveNone) {
  for (const std::string run : {"1234", ""}) {
    HubListener listener("127.0.0.1", 0);
    auto own = host("a", 2, {0});
    own.run = run;
    auto without = host("b", 2, {1});
    without.run = "";
    auto other = come("127.0.0.1", listener.port(), without);
    const auto hub = serve(listener, own).get();
    const auto connected = other.get();
    ASSERT_TRUE(hub.connected && connected.connected) << hub.error << connected.error;
    EXPECT_EQ(hub.connected->run, connected.connected->run);
    EXPECT_EQ(hub.connected->run.size(), run.empty() ? 16 : 4);
  }
}

TEST(HostConnections, MissingRanksAndTheHostsThatAreThereAreListedOnAllHosts) {
  HubListener listener("127.0.0.1", 0);
  auto b = come("127.0.0.1", listener.port(), host("b", 7, {2, 3}));
  auto c = come("127.0.0.1", listener.port(), host("c", 7, {5}));
  const auto hub = serve(listener, host("a", 7, {0, 1}), seconds(2)).get();
  EXPECT_THAT(hub.error,
              AllOf(StartsWith(fmt::format("Timeout: not all hosts have come to the hub at "
                                           "127.0.0.1:{} within ",
                                           listener.port())),
                    HasSubstr("ranks 4 6 of 7 missing; there: a (ranks 0 1), "),
                    HasSubstr("b (ranks 2 3)"), HasSubstr("c (rank 5)"),
                    EndsWith("the hub listens where only processes of its own host reach it")));
  EXPECT_EQ(b.get().error, hub.error);
  EXPECT_EQ(c.get().error, hub.error);
}

TEST(HostConnections, AHostWhoseDeadlinePassesFirstTellsWhoIsMissingAndSoDoTheOthers) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 3, {0}));
  auto b = come("127.0.0.1", listener.port(), host("b", 3, {1}), seconds(2)).get();
  EXPECT_THAT(b.error,
              AllOf(StartsWith("Timeout: host b (rank 1) could not join the others at 127.0.0.1:"),
                    HasSubstr(" within 2."), HasSubstr("rank 2 of 3 missing; there: a (rank 0)")));
  EXPECT_THAT(hub.get().error, AllOf(StartsWith("Timeout: b (rank 1) gave up: not all hosts"),
                                     HasSubstr("rank 2 of 3 missing; there: a (rank 0), b")));
}

TEST(HostConnections, AWaitEndsWhenPatienceDoes) {
  const auto soon = [](const Clock::time_point& end) {
    return [end] { return Clock::now() < end; };
  };
  const auto begin = Clock::now();
  HubListener listener("127.0.0.1", 0);
  const auto hub = outcome_of([&] {
    return listener.accept_all(host("a", 2, {0}), within(seconds(60)),
                               soon(begin + milliseconds(100)));
  });
  EXPECT_THAT(hub.error, HasSubstr("rank 1 of 2 missing"));
  const auto silent = outcome_of([&] {
    return connect_to_hub({"127.0.0.1", listener.port()}, host("b", 2, {1}), within(seconds(60)),
                          soon(begin + milliseconds(200)));
  });
  EXPECT_THAT(silent.error, EndsWith("what listens there does not answer"));
  const auto refused = outcome_of([&] {
    return connect_to_hub({"127.0.0.9", listener.port()}, host("b", 2, {1}), within(seconds(60)),
                          soon(begin + milliseconds(300)));
  });
  EXPECT_THAT(refused.error, HasSubstr("Connection refused"));
  EXPECT_LT(Clock::now() - begin, seconds(30));
}

TEST(HostConnections, AHubThatCannotBeReachedIsATimeoutThatTellsTheReason) {
  int port = 0;
  {
    HubListener listener("127.0.0.1", 0);
    port = listener.port();
  }
  EXPECT_THAT(come("127.0.0.1", port, host("b", 2, {1}), milliseconds(300)).get().error,
              AllOf(StartsWith(fmt::format("Timeout: host b (rank 1) could not join the others at "
                                           "127.0.0.1:{} within ",
                                           port)),
                    HasSubstr("Connection refused; is the host of rank 0 started")));
  HubListener silent("::1", 0);  // which nobody serves
  EXPECT_THAT(come("::1", silent.port(), host("b", 2, {1}), milliseconds(300)).get().error,
              AllOf(HasSubstr(fmt::format("at [::1]:{} within", silent.port())),
                    EndsWith("what listens there does not answer")));
}

TEST(HostConnections, AnAddressThatMakesNoSenseIsRefused) {
  const std::string unknown = "no host " + std::string(70, 'x');
  EXPECT_THAT(come(unknown, 1, host("b", 2, {1})).get().error,
              StartsWith(fmt::format("InvalidArgument: no host is known as \"{}\": ", unknown)));
  EXPECT_THAT(come("127.0.0.1", 65536, host("b", 2, {1})).get().error,
              StartsWith("InvalidArgument: the port of the hub 127.0.0.1 is 65536"));
  EXPECT_EQ(text_of([] { HubListener("", 0); }), "the address of the hub is empty");
  EXPECT_THAT(text_of<IoError>([] { HubListener("192.0.2.1", 0); }),
              AllOf(StartsWith("the hub cannot listen at 192.0.2.1:0, which is no address of this "
                               "host; these are: "),
                    HasSubstr("lo 127.0.0.1")));
}

TEST(HostConnections, APortInUseIsToldByTheHub) {
  HubListener first("127.0.0.1", 0);
  try {
    HubListener second("127.0.0.1", first.port());
    ADD_FAILURE() << "two hubs listen on one port";
  } catch (const IoError& error) {
    EXPECT_EQ(error.code(), EADDRINUSE);
    EXPECT_EQ(error.what(), fmt::format("the hub cannot listen at 127.0.0.1:{}: the port is in "
                                        "use, by another job or another program",
                                        first.port()));
  }
}

// promise: clusters#between-hosts
TEST(HostConnections, TheHubListensAtItsAddressAlone) {
  HubListener listener("127.0.0.1", 0);
  EXPECT_THAT(come("127.0.0.2", listener.port(), host("b", 2, {1}), milliseconds(200)).get().error,
              HasSubstr("Connection refused"));
  EXPECT_THAT(come("::1", listener.port(), host("b", 2, {1}), milliseconds(200)).get().error,
              HasSubstr("Connection refused"));
}

// promise: clusters#between-hosts
TEST(HostConnections, AHostConnectsFromTheAddressThatItIsGiven) {
  HubListener listener("127.0.0.1", 0);
  auto other = std::async(std::launch::async, [&] {
    return outcome_of([&] {
      return connect_to_hub({"127.0.0.1", listener.port(), "127.0.0.5"}, host("b", 2, {1}),
                            within(seconds(30)));
    });
  });
  const auto hub = serve(listener, host("a", 2, {0})).get();
  ASSERT_TRUE(hub.connected && other.get().connected) << hub.error;
  TcpAddress peer;
  ::getpeername(hub.connected->hosts[1].socket.get(), peer.get(), &peer.bytes);
  EXPECT_THAT(peer.text(), StartsWith("127.0.0.5:"));
  EXPECT_THAT(text_of([&] {
                connect_to_hub({"127.0.0.1", listener.port(), "192.0.2.1"}, host("b", 2, {1}),
                               within(seconds(30)));
              }),
              StartsWith("192.0.2.1 is no address of this host"));
}

// promise: clusters#several-hosts
TEST(HostConnections, WhatDiffersBetweenTwoHostsIsToldOnAllWithBothNames) {
  struct Case {
    HostIntroduction wrong;
    std::string text;
  };
  auto facts = host("c", 4, {3});
  facts.facts = "frame 3";
  const Case cases[] = {
      {facts, "Mismatch: hosts differ: a (ranks 0 1) has \"frame 2\", c (rank 3) has \"frame 3\""},
      {host("c", 5, {3}),
       "Mismatch: a (ranks 0 1) was started for a job of 4 workers, c (rank 3) for one of 5"},
      {host("c", 4, {2, 3}), "Mismatch: rank 2 is on two hosts: b (rank 2) and c (ranks 2 3)"},
      {host("c", 4, {0, 1, 3}),
       "Mismatch: ranks 0 1 are on two hosts: a (ranks 0 1) and c (ranks 0 1 3)"}};
  for (const auto& each : cases) {
    HubListener listener("127.0.0.1", 0);
    auto hub = serve(listener, host("a", 4, {0, 1}));
    auto b = introduced(listener.port(), host("b", 4, {2}));
    auto wrong = come("127.0.0.1", listener.port(), each.wrong);
    EXPECT_EQ(wrong.get().error, each.text);
    SignedMessage message;
    do {
      ASSERT_EQ(read_from(b, message), SignedChannel::Status::done);
    } while (static_cast<HostMessage>(message.kind) == HostMessage::waiting);
    ASSERT_EQ(static_cast<HostMessage>(message.kind), HostMessage::failed);
    EXPECT_EQ("Mismatch: " + read_verdict(message.content)->text, each.text);
    EXPECT_EQ(hub.get().error, each.text);
  }
}

TEST(HostConnections, AHostThatComesAfterAFailureIsToldOfIt) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 3, {0}));
  auto wrong = come("127.0.0.1", listener.port(), host("b", 4, {1})).get();
  auto late = come("127.0.0.1", listener.port(), host("c", 3, {2})).get();
  EXPECT_THAT(wrong.error, StartsWith("Mismatch: a (rank 0) was started for a job of 3"));
  EXPECT_EQ(late.error, wrong.error);
  EXPECT_EQ(hub.get().error, wrong.error);
}

TEST(HostConnections, AnIntroductionThatMakesNoSenseIsRefusedWhereItIsMade) {
  const auto refused = [](HostIntroduction own) {
    return come("127.0.0.1", 1, std::move(own)).get().error;
  };
  EXPECT_THAT(refused(host("b", 2, {2})),
              StartsWith("InvalidArgument: host b cannot have rank 2 of 2 workers"));
  EXPECT_THAT(refused(host("b", 2, {})), StartsWith("InvalidArgument: host b cannot have nobody"));
  EXPECT_THAT(refused(host("b", 3, {2, 1})), StartsWith("InvalidArgument: host b cannot have"));
  EXPECT_THAT(refused(host("b", 1025, {1})), StartsWith("InvalidArgument: host b cannot have"));
  EXPECT_EQ(refused(host("b", 100, (RankSet::below(75) - RankSet::below(10)).ranks())),
            "InvalidArgument: host b has 65 workers: must be 1 to 64");
  EXPECT_THAT(refused(host(std::string(256, 'b'), 2, {1})), HasSubstr("too long a text"));
  auto own = host("b", 2, {1});
  own.token.clear();
  EXPECT_THAT(refused(own), HasSubstr("without a token"));
  HubListener listener("127.0.0.1", 0);
  EXPECT_THAT(
      serve(listener, host("b", 2, {1})).get().error,
      StartsWith("InvalidArgument: the hub is the host of rank 0, which b (rank 1) is not"));
}

// promise: clusters#between-hosts
TEST(HostConnections, AHostOfAnotherRunIsTurnedAwayAndHoldsNobodyUp) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 2, {0}));
  auto own = host("x", 2, {1});
  own.run = "9999";
  EXPECT_EQ(come("127.0.0.1", listener.port(), own).get().error,
            fmt::format("Mismatch: two jobs use 127.0.0.1:{}: the hub a (rank 0) belongs to run "
                        "1234, x (rank 1) to run 9999",
                        listener.port()));
  EXPECT_TRUE(come("127.0.0.1", listener.port(), host("b", 2, {1})).get().connected);
  EXPECT_TRUE(hub.get().connected);
}

// promise: clusters#between-hosts
TEST(HostConnections, AHostWithAnotherTokenIsTurnedAwayAndHoldsNobodyUp) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 2, {0}));
  auto own = host("x", 2, {1});
  own.token += "r";
  EXPECT_EQ(come("127.0.0.1", listener.port(), own).get().error,
            fmt::format("Mismatch: host x (rank 1) cannot join at 127.0.0.1:{}: this host and the "
                        "hub have different tokens",
                        listener.port()));
  EXPECT_TRUE(come("127.0.0.1", listener.port(), host("b", 2, {1})).get().connected);
  EXPECT_TRUE(hub.get().connected);
}

// promise: clusters#between-hosts
TEST(HostConnections, WhoWasTurnedAwayIsToldWhereHostsAreMissing) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 2, {0}), seconds(2));
  auto own = host("x", 2, {1});
  own.token = "another";
  EXPECT_THAT(come("127.0.0.1", listener.port(), own).get().error, StartsWith("Mismatch"));
  EXPECT_THAT(hub.get().error, HasSubstr("turned away: 127.0.0.1 has another token"));
}

TEST(HostConnections, AHostOfALaterAttemptWaitsForTheHubAndOneOfAnEarlierIsRefused) {
  HubListener listener("127.0.0.1", 0);
  auto own = host("a", 2, {0});
  auto b = host("b", 2, {1});
  own.attempt = 1;
  auto hub = serve(listener, own);
  b.attempt = 2;
  auto later = come("127.0.0.1", listener.port(), b);
  b.attempt = 0;
  EXPECT_EQ(come("127.0.0.1", listener.port(), b).get().error,
            "Mismatch: the hub a (rank 0) is at attempt 1, b (rank 1) at attempt 0");
  EXPECT_EQ(later.wait_for(milliseconds(200)), std::future_status::timeout);
  b.attempt = 1;
  EXPECT_TRUE(come("127.0.0.1", listener.port(), b).get().connected);
  EXPECT_TRUE(hub.get().connected);
  own.attempt = 2;
  EXPECT_TRUE(serve(listener, own).get().connected);
  EXPECT_TRUE(later.get().connected);
}

// promise: clusters#between-hosts
TEST(HostConnections, WhoPosesAsTheHubWithoutTheTokenIsNotBelieved) {
  HubListener at("127.0.0.1", 0);
  auto b = come("127.0.0.1", at.port(), host("b", 2, {1}));
  auto own = host("a", 2, {0});
  own.token = "guessed";
  auto impostor = serve(at, own, seconds(1));
  EXPECT_THAT(b.get().error, HasSubstr("this host and the hub have different tokens"));
  EXPECT_THAT(impostor.get().error, StartsWith("Timeout"));
}

TEST(HostConnections, WhatListensAndIsNoHubIsToldAtOnce) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  auto b = come("127.0.0.1", own_address(listener).port(), host("b", 2, {1}));
  pollfd polled{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 20'000), 1);
  TcpAddress from;
  const auto socket = accept_from(listener, from);
  ASSERT_EQ(::send(socket.get(), "SSH-2.0-OpenSSH", 15, 0), 15);
  EXPECT_THAT(b.get().error, EndsWith("what listens there is no hub of Tutti"));
}

// promise: clusters#between-hosts
TEST(HostConnections, SilentSlowAndSenselessStrangersHoldNobodyUp) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 2, {0}));
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger(listener.port()));
  const auto senseless = stranger(listener.port());
  ASSERT_EQ(::send(senseless.get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL), 16);
  // Hung up on; as the rest of its request was not read, that is a reset.
  pollfd polled{senseless.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 20'000), 1);
  char byte = 0;
  EXPECT_LE(::recv(senseless.get(), &byte, 1, 0), 0);
  const auto slow = stranger(listener.port());
  ASSERT_EQ(::send(slow.get(), "T", 1, MSG_NOSIGNAL), 1);
  const auto begin = Clock::now();
  EXPECT_TRUE(come("127.0.0.1", listener.port(), host("b", 2, {1})).get().connected);
  EXPECT_TRUE(hub.get().connected);
  EXPECT_LT(Clock::now() - begin, seconds(4));  // less than one silent stranger is given
}

// promise: clusters#between-hosts
TEST(HostConnections, StrangersThatTakeAllDescriptorsHoldNobodyUp) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto outcome = run_processes(2, [&](int rank, FileDescriptor) {
    int port = 0;
    if (rank == 0) {
      const rlimit few{32, 32};
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
      HubListener listener("127.0.0.1", 0);
      port = listener.port();
      ASSERT_EQ(::write(ends[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
      const auto hub =
          outcome_of([&] { return listener.accept_all(host("a", 2, {0}), within(seconds(30))); });
      EXPECT_TRUE(hub.connected) << hub.error;
    } else {
      ASSERT_EQ(::read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
      std::vector<FileDescriptor> silent;
      for (int i = 0; i < 100; ++i) silent.push_back(stranger(port));
      const auto b = outcome_of([&] {
        return connect_to_hub({"127.0.0.1", port}, host("b", 2, {1}), within(seconds(30)));
      });
      EXPECT_TRUE(b.connected) << b.error;
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  ::close(ends[0]);
  ::close(ends[1]);
}

// promise: clusters#between-hosts
TEST(HostConnections, ASilentStrangerIsHungUpOn) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 2, {0}));
  const auto silent = stranger(listener.port());
  EXPECT_EQ(read_byte(silent), "");
  EXPECT_TRUE(come("127.0.0.1", listener.port(), host("b", 2, {1})).get().connected);
  EXPECT_TRUE(hub.get().connected);
}

/// Processes that connect and hang up without a pause, for as long as it lives.
class Flood {
 public:
  explicit Flood(int port) : port_(port) {
    for (int i = 0; i < 3; ++i) {
      threads_.emplace_back([this] {
        std::string problem;
        const auto to = resolve("127.0.0.1", port_, problem).at(0);
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        while (!over_) {
          const auto socket = begin_connection(to, nullptr);
          ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        }
      });
    }
  }
  ~Flood() {
    over_ = true;
    for (auto& thread : threads_) thread.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

 private:
  int port_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

// A round of accepting ended only when nobody was in the queue.
// findings-3: C2
TEST(HostConnections, AFloodOfStrangersNeitherKeepsAHostOutNorPutsOffTheDeadline) {
  HubListener listener("127.0.0.1", 0);
  {
    const Flood flood(listener.port());
    const auto begin = Clock::now();
    auto hub = serve(listener, host("a", 2, {0}), milliseconds(500));
    EXPECT_EQ(hub.wait_for(seconds(5)), std::future_status::ready);
    EXPECT_LT(Clock::now() - begin, seconds(5));
  }
  HubListener another("127.0.0.1", 0);
  const Flood flood(another.port());
  auto hub = serve(another, host("a", 2, {0}), seconds(20));
  const auto b = come("127.0.0.1", another.port(), host("b", 2, {1}), seconds(20)).get();
  EXPECT_TRUE(b.connected) << b.error;
  EXPECT_TRUE(hub.get().connected);
}

TEST(HostConnections, AHostThatEndsDuringTheJoinIsLostOnAllWithItsRanks) {
  HubListener listener("127.0.0.1", 0);
  auto hub = serve(listener, host("a", 5, {0}));
  auto b = come("127.0.0.1", listener.port(), host("b", 5, {1, 2}));
  { const auto c = introduced(listener.port(), host("c", 5, {3})); }
  const auto at_hub = hub.get();
  EXPECT_EQ(at_hub.error, "PeerLost: host c (rank 3) ended while the hosts of the job joined");
  EXPECT_EQ(at_hub.rank, 3);
  const auto at_b = b.get();
  EXPECT_EQ(at_b.error, at_hub.error);
  EXPECT_EQ(at_b.rank, 3);
}

TEST(HostConnections, AHubThatEndsDuringTheJoinIsRank0Lost) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = own_address(listener).port();
  auto b = come("127.0.0.1", port, host("b", 3, {1}));
  pollfd polled{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 20'000), 1);
  TcpAddress from;
  {
    SignedChannel hub(accept_from(listener, from), SignedChannel::Side::hub, kToken);
    SignedMessage message;
    ASSERT_EQ(read_from(hub, message), SignedChannel::Status::done);
    hub.push(static_cast<std::uint32_t>(HostMessage::waiting), "rank 2 of 3 missing");
    hub.write();
  }
  const auto lost = b.get();
  EXPECT_EQ(lost.error,
            fmt::format("PeerLost: the hub at 127.0.0.1:{} ended while the hosts of the job joined",
                        port));
  EXPECT_EQ(lost.rank, 0);
}

}  // namespace
}  // namespace tutti::test
