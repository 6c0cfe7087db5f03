// A peer of a link over Gloo that is a process: link_worker SELF PEERS STORE. Streams 4 MiB
// messages to and from every other peer without an end, and has a receive open that nobody answers.
// Prints
//
//     ready                          the link is made
//     failed=P kind=K us=T text      an operation ended so at T of CLOCK_MONOTONIC; there are three
//                                    for each peer
//     moved=P                        50 messages came from P since the last such line
//     closed us=D                    after SIGTERM, the link took D µs to end
//
// SIGPIPE is left as a program finds it: it would end this one.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "c10d/gloo_link.h"

namespace {

using tutti::Clock;
using tutti::Deadline;
using tutti::Link;
using tutti::LinkError;
using Microseconds = std::chrono::microseconds;

std::atomic<bool> must_close{false};
constexpr std::size_t kBytes = 4 << 20;
constexpr int kLine = 50;

long long since(Clock::time_point begin) { return (Clock::now() - begin) / Microseconds(1); }

struct Stream {
  int peer = 0;
  std::vector<std::byte> out = std::vector<std::byte>(kBytes, std::byte{1});
  std::vector<std::byte> in = std::vector<std::byte>(kBytes);
  std::byte unanswered{};
  int received = 0;

  void fail(const LinkError& error) {
    std::printf("failed=%d kind=%d us=%lld %s\n", peer, static_cast<int>(error.kind), since({}),
                error.text.c_str());
  }
  void send(Link& link) {
    link.send(0, peer, out, [this, &link](const LinkError* error) {
      error == nullptr ? send(link) : fail(*error);
    });
  }
  void receive(Link& link) {
    link.receive(0, peer, in, [this, &link](const LinkError* error) {
      if (error == nullptr && ++received % kLine == 0) std::printf("moved=%d\n", peer);
      error == nullptr ? receive(link) : fail(*error);
    });
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::signal(SIGTERM, [](int) { must_close = true; });
  const int self = std::atoi(arguments[1]);
  const int peers = std::atoi(arguments[2]);
  const auto store = c10::make_intrusive<c10d::FileStore>(arguments[3], peers);
  auto link =
      tutti::make_gloo_link({.self = self,
                             .peers = peers,
                             .lanes = 2,
                             .address = "127.0.0.1",
                             .deadline = Deadline::after(Clock::now(), std::chrono::seconds(50))},
                            c10::static_intrusive_pointer_cast<c10d::Store>(store));
  std::deque<Stream> streams;
  for (int peer = 0; peer < peers; ++peer) {
    if (peer != self) streams.emplace_back().peer = peer;
  }
  for (auto& stream : streams) {
    link->receive(1, stream.peer, {&stream.unanswered, 1}, [&stream](const LinkError* error) {
      if (error != nullptr) stream.fail(*error);
    });
    stream.receive(*link);
    stream.send(*link);
  }
  std::printf("ready\n");
  while (!must_close) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = Clock::now();
  link.reset();
  std::printf("closed us=%lld\n", since(begin));
  return 0;
}
