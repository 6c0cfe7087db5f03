#pragma once

// What every engine of a link must do, written for all of them: each program that has an engine
// includes this once and instantiates LinkConformance with worlds of it.
//
// The tests are what every peer runs: a world calls the body once per peer, in threads of this
// process or in processes of their own.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "base/check.h"
#include "comm/link/link.h"
#include "comm/link/link_collectives.h"

namespace tutti::test {

class LinkWorld {
 public:
  using Body = std::function<void(std::unique_ptr<Link>&)>;
  virtual ~LinkWorld() = default;
  /// Calls `body` for each peer with its link, which it may destroy. Links that are left end after
  /// all bodies have.
  virtual void run(int peers, int lanes, const Body& body) = 0;
};

/// Peers that are threads: for engines that have several links in one process.
class ThreadLinkWorld : public LinkWorld {
 public:
  void run(int peers, int lanes, const Body& body) override {
    const auto make = start(peers, lanes);
    std::atomic<int> open{peers};
    std::vector<std::thread> threads;
    for (int peer = 0; peer < peers; ++peer) {
      threads.emplace_back([&, peer] {
        auto link = make(peer);
        body(link);
        for (--open; open > 0;) {
          if (link == nullptr || !link->needs_progress()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          } else {
            link->progress(Deadline::after(Clock::now(), std::chrono::milliseconds(1)));
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }

 protected:
  using Make = std::function<std::unique_ptr<Link>(int peer)>;
  /// A new set of peers; what it returns is called by the thread of each.
  virtual Make start(int peers, int lanes) = 0;
};

struct LinkWorldCase {
  std::string name;
  std::function<std::unique_ptr<LinkWorld>()> make;
};
inline std::string name_of(const ::testing::TestParamInfo<LinkWorldCase>& info) {
  return info.param.name;
}
inline void PrintTo(const LinkWorldCase& of, std::ostream* out) { *out << of.name; }

class LinkConformance : public ::testing::TestWithParam<LinkWorldCase> {
 protected:
  using Bytes = std::vector<std::byte>;

  void run(int peers, int lanes, const LinkWorld::Body& body) {
    GetParam().make()->run(peers, lanes, body);
  }
  static Deadline soon() { return Deadline::after(Clock::now(), std::chrono::seconds(60)); }

  /// The content of message k from one peer to another on a lane.
  static Bytes content(int from, int to, int lane, int k, std::size_t size) {
    std::mt19937 random(1000003U * from + 10007U * to + 101U * lane + k);
    Bytes bytes(size);
    std::size_t i = 0;
    for (; i + 4 <= size; i += 4) {
      const auto word = static_cast<std::uint32_t>(random());
      std::memcpy(&bytes[i], &word, 4);
    }
    for (; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
    return bytes;
  }

  /// A message on its way, with its memory.
  struct Transfer {
    Bytes bytes;
    Bytes expected;
    PendingOperation operation;
    std::string what;
  };
  using Transfers = std::deque<Transfer>;

  static void post_send(Link& link, int lane, int peer, int k, std::size_t size, Transfers& all) {
    auto& transfer = all.emplace_back();
    transfer.bytes = content(link.self(), peer, lane, k, size);
    transfer.expected = transfer.bytes;
    transfer.what = "send " + std::to_string(k) + " to " + std::to_string(peer);
    link.send(lane, peer, transfer.bytes, transfer.operation.done());
  }
  static void post_receive(Link& link, int lane, int peer, int k, std::size_t size,
                           Transfers& all) {
    auto& transfer = all.emplace_back();
    transfer.bytes.resize(size, std::byte{0xEE});
    transfer.expected = content(peer, link.self(), lane, k, size);
    transfer.what = "receive " + std::to_string(k) + " from " + std::to_string(peer);
    link.receive(lane, peer, transfer.bytes, transfer.operation.done());
  }
  static void finish(Link& link, Transfer& transfer) {
    if (!transfer.operation.wait(link, soon())) {
      std::cerr << link.self() << ": no end of " << transfer.what << std::endl;
      std::abort();  // the link still uses the memory
    }
    const auto* error = transfer.operation.error();
    ASSERT_EQ(error, nullptr) << transfer.what << ": " << error->text;
    EXPECT_TRUE(transfer.bytes == transfer.expected) << transfer.what;
  }
  static void finish(Link& link, Transfers& all) {
    for (auto& transfer : all) finish(link, transfer);
    all.clear();
  }
  /// A message of one peer to another and back, both on `lane`: what either did before has been
  /// done when the other continues.
  static void meet(Link& link, int lane, int peer) {
    Transfers all;
    post_receive(link, lane, peer, 777, 5, all);
    post_send(link, lane, peer, 777, 5, all);
    finish(link, all);
  }
  static LinkError failed(Link& link, PendingOperation& operation) {
    EXPECT_TRUE(operation.wait(link, soon()));
    const auto* error = operation.error();
    EXPECT_NE(error, nullptr) << "the operation has succeeded";
    return error == nullptr ? LinkError{} : *error;
  }
  /// Waits for what other threads do.
  static bool comes(Link& link, const std::function<bool()>& is_so) {
    for (const auto end = soon().at; !is_so();) {
      if (Clock::now() > end) return false;
      link.progress(Deadline::after(Clock::now(), std::chrono::milliseconds(1)));
      if (!link.needs_progress()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
};

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_P(LinkConformance, KnowsItsPlace) {
  run(3, 2, [](auto& link) {
    EXPECT_EQ(link->peers(), 3);
    EXPECT_EQ(link->lanes(), 2);
    EXPECT_THAT(link->description(), Not(IsEmpty()));
    EXPECT_THROW(link->send(2, (link->self() + 1) % 3, {}, [](auto*) {}), InternalError);
    EXPECT_THROW(link->send(0, link->self(), {}, [](auto*) {}), InternalError);
    EXPECT_THROW(link->receive(0, 3, {}, [](auto*) {}), InternalError);
  });
}

TEST_P(LinkConformance, MessagesOfALaneKeepTheirOrder) {
  run(3, 2, [](auto& link) {
    Transfers all;
    const auto size = [](int k) { return static_cast<std::size_t>(k * 37 % 300); };
    for (int k = 0; k < 40; ++k) {
      for (int lane = 0; lane < 2; ++lane) {
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == link->self()) continue;
          post_send(*link, lane, peer, k, size(k), all);
          post_receive(*link, lane, peer, k, size(k), all);
        }
      }
    }
    finish(*link, all);
  });
}

TEST_P(LinkConformance, MessagesOfEqualSizeKeepTheirOrder) {
  run(2, 1, [](auto& link) {
    Transfers all;
    const int peer = 1 - link->self();
    for (int k = 0; k < 500; ++k) post_receive(*link, 0, peer, k, 64, all);
    for (int k = 0; k < 500; ++k) post_send(*link, 0, peer, k, 64, all);
    finish(*link, all);
  });
}

TEST_P(LinkConformance, MovesAnySize) {
  run(2, 1, [](auto& link) {
    const int peer = 1 - link->self();
    int k = 0;
#ifdef TUTTI_SANITIZED
    constexpr std::size_t kLargest = 4UL << 20;
#else
    constexpr std::size_t kLargest = 64UL << 20;
#endif
    for (const std::size_t size : {0UL, 1UL, 7UL, 64UL, 4097UL, (1UL << 20) + 3, kLargest}) {
      Transfers all;
      post_receive(*link, 0, peer, ++k, size, all);
      post_send(*link, 0, peer, k, size, all);
      finish(*link, all);
    }
  });
}

TEST_P(LinkConformance, EitherSideMayBeFirst) {
  run(2, 2, [](auto& link) {
    const int peer = 1 - link->self();
    for (int first = 0; first < 2; ++first) {
      for (const std::size_t size : {0UL, 10UL, 100000UL}) {
        Transfers all;
        const bool is_sender = link->self() == 0;
        if (is_sender == (first == 0)) {
          is_sender ? post_send(*link, 0, peer, 1, size, all)
                    : post_receive(*link, 0, peer, 1, size, all);
          meet(*link, 1, peer);
        } else {
          meet(*link, 1, peer);
          is_sender ? post_send(*link, 0, peer, 1, size, all)
                    : post_receive(*link, 0, peer, 1, size, all);
        }
        finish(*link, all);
      }
    }
  });
}

TEST_P(LinkConformance, AnOpenOperationHoldsUpNothingElse) {
  run(3, 2, [](auto& link) {
    Transfers open;
    Transfers all;
    const int next = (link->self() + 1) % 3;
    const int previous = (link->self() + 2) % 3;
    // Nothing answers these before the end: neither the other peer on the same lane, nor the other
    // lane, nor the other direction may wait for them.
    post_receive(*link, 0, next, 1, 100000, open);
    for (const int peer : {next, previous}) {
      post_receive(*link, 1, peer, 3, 5, all);
      post_send(*link, 1, peer, 3, 5, all);
    }
    finish(*link, all);
    post_send(*link, 0, next, 2, 50000, all);
    post_receive(*link, 0, previous, 2, 50000, all);
    finish(*link, all);
    post_send(*link, 0, previous, 1, 100000, all);
    finish(*link, all);
    finish(*link, open);
  });
}

TEST_P(LinkConformance, ADoneMayPostTheNext) {
  run(2, 1, [](auto& link) {
    const int peer = 1 - link->self();
    struct Chain {
      std::atomic<int> sent{0};
      std::atomic<int> received{0};
      std::atomic<int> bad{0};
      std::byte out{1};
      std::byte in{0};
    } chain;
    std::function<void()> send = [&] {
      link->send(0, peer, {&chain.out, 1}, [&](auto* error) {
        if (error != nullptr) ++chain.bad;
        if (++chain.sent < 300) send();
      });
    };
    std::function<void()> receive = [&] {
      link->receive(0, peer, {&chain.in, 1}, [&](auto* error) {
        if (error != nullptr || chain.in != std::byte{1}) ++chain.bad;
        if (++chain.received < 300) receive();
      });
    };
    send();
    receive();
    EXPECT_TRUE(comes(*link, [&] { return chain.sent == 300 && chain.received == 300; }));
    EXPECT_EQ(chain.bad, 0);
  });
}

TEST_P(LinkConformance, AllToAllOfVariableSizes) {
  run(4, 1, [](auto& link) {
    const int self = link->self();
    const auto size = [](int from, int to) {
      return static_cast<std::size_t>((from * 2 + to * 5 + 1) % 4 * 1001);
    };
    for (int round = 0; round < 3; ++round) {
      std::vector<Bytes> out(4);
      std::vector<Bytes> in(4);
      std::vector<std::span<const std::byte>> outs(4);
      std::vector<std::span<std::byte>> ins(4);
      for (int peer = 0; peer < 4; ++peer) {
        out[peer] = content(self, peer, 0, round, size(self, peer));
        in[peer].resize(size(peer, self));
        outs[peer] = out[peer];
        ins[peer] = in[peer];
      }
      PendingOperation operation;
      all_to_all(*link, 0, outs, ins, operation.done());
      ASSERT_TRUE(operation.wait(*link, soon()));
      ASSERT_EQ(operation.error(), nullptr);
      for (int peer = 0; peer < 4; ++peer) {
        EXPECT_TRUE(in[peer] == content(peer, self, 0, round, size(peer, self))) << peer;
      }
    }
  });
}

TEST_P(LinkConformance, BroadcastFromEachRoot) {
  run(3, 1, [](auto& link) {
    for (int root = 0; root < 3; ++root) {
      auto bytes = link->self() == root ? content(root, 0, 0, 9, 333) : Bytes(333);
      PendingOperation operation;
      broadcast(*link, 0, root, bytes, operation.done());
      ASSERT_TRUE(operation.wait(*link, soon()));
      ASSERT_EQ(operation.error(), nullptr);
      EXPECT_TRUE(bytes == content(root, 0, 0, 9, 333)) << root;
    }
  });
}

TEST_P(LinkConformance, PassesItsSelfTest) {
  run(3, 2, [](auto& link) { EXPECT_NO_THROW(self_test(*link, soon())); });
}

TEST_P(LinkConformance, RandomScheduleGivesWhatWasSent) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    run(3, 3, [seed](auto& link) {
      // The same list on all peers; each posts its own part in an order of its own.
      std::mt19937 shared(seed);
      struct Planned {
        int lane, peer, k;
        bool is_send;
        std::size_t size;
      };
      std::vector<std::deque<Planned>> channels(3 * 3 * 2);
      for (int k = 0; k < 300; ++k) {
        const int from = shared() % 3;
        const int to = (from + 1 + shared() % 2) % 3;
        const int lane = shared() % 3;
        const std::size_t size = shared() % 10 == 0 ? shared() % 200000 : shared() % 500;
        if (link->self() == from) {
          channels[(lane * 3 + to) * 2].push_back({lane, to, k, true, size});
        } else if (link->self() == to) {
          channels[(lane * 3 + from) * 2 + 1].push_back({lane, from, k, false, size});
        }
      }
      std::mt19937 own(seed * 31 + link->self());
      Transfers all;
      std::erase_if(channels, [](auto& channel) { return channel.empty(); });
      while (!channels.empty()) {
        const auto at = own() % channels.size();
        const auto next = channels[at].front();
        channels[at].pop_front();
        if (channels[at].empty()) channels.erase(channels.begin() + at);
        next.is_send ? post_send(*link, next.lane, next.peer, next.k, next.size, all)
                     : post_receive(*link, next.lane, next.peer, next.k, next.size, all);
        if (own() % 16 == 0) {
          link->progress(Deadline::after(Clock::now(), std::chrono::milliseconds(1)));
        }
      }
      finish(*link, all);
    });
  }
}

}  // namespace tutti::test
