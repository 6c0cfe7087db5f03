// Messages between two members: order, directions, sizes, and what is wrong with them.

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "comm/channels.h"
#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "comm/host_link.h"
#include "comm/lengths.h"
#include "comm/local/control_arena.h"
#include "comm/on_hosts.h"
#include "kernels/hash.h"
#include "support/expect_lost.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Pairs = std::vector<std::pair<int, int>>;

Values<float> message(int from, int to, std::int64_t number, std::int64_t count) {
  return Values<float>::random(count, static_cast<std::uint64_t>(from * 1000 + to * 100 + number));
}

void expect_message(const Values<float>& got, int from, int to, std::int64_t number) {
  EXPECT_TRUE(same_values(got.data(), message(from, to, number, got.count()).data(), got.count()))
      << "message " << number << " from " << from << " to " << to << ", of " << got.count();
}

/// Every kind of place: one host, one for each, several with two ways into one.
std::vector<ThreadOptions> places(int ranks) {
  std::vector<ThreadOptions> all = {{}};
  all.push_back(on(even_hosts(ranks, ranks)));
  all.push_back(on(even_hosts(ranks, 2)));
  return all;
}

Pairs ring(int ranks) {
  Pairs pairs;
  for (int rank = 0; rank < ranks; ++rank) pairs.emplace_back(rank, (rank + 1) % ranks);
  return pairs;
}

// promise: group#lanes-several-calls-at-a-time, group#messages-between-two-members, group.h#send
TEST(Messages, OfOnePairComeInTheOrderInWhichTheyWereSent) {
  for (const auto& options : places(3)) {
    run_thread_ranks(
        3,
        [](const Job& job) {
          const Group group(job);
          group.connect(Pairs{{0, 2}, {2, 1}});
          const std::vector<std::int64_t> sizes = {0, 1, 1000, 5000, kChunk + 7, 2, 3 * kChunk};
          for (std::size_t k = 0; k < sizes.size(); ++k) {
            const auto number = static_cast<std::int64_t>(k);
            for (const auto& [from, to] : Pairs{{0, 2}, {2, 1}, {1, 2}, {2, 0}}) {
              if (job.rank() == from) group.send(view(message(from, to, number, sizes[k])), to);
              if (job.rank() != to) continue;
              Values<float> taken(sizes[k]);
              group.receive(view(taken), from);
              expect_message(taken, from, to, number);
            }
          }
        },
        options);
  }
}

/// Each waits for its predecessor while its successor waits for it: nobody could be first.
// promise: group#messages-between-two-members, group.h#send
TEST(Messages, GoAroundARingWhereAllHaveStartedToSend) {
  for (const int ranks : {2, 3, 5}) {
    for (const auto& options : places(ranks)) {
      run_thread_ranks(
          ranks,
          [&](const Job& job) {
            const Group group(job);
            group.connect(ring(ranks));
            const int self = job.rank();
            const int next = (self + 1) % ranks;
            const int last = (self + ranks - 1) % ranks;
            for (const std::int64_t count : {10, 10'000, 200'000}) {
              const auto given = message(self, next, count, count);
              Values<float> taken(count);
              auto sent = group.start().send(view(given), next);
              group.receive(view(taken), last);
              sent.wait();
              expect_message(taken, last, self, count);
            }
          },
          options);
    }
  }
}

/// As in a pipeline: the next stage is ahead with what it gives back, this one with what it gives.
// promise: group.h#send
TEST(Messages, OfTwoDirectionsDoNotWaitForOneAnother) {
  for (const auto& options : places(2)) {
    run_thread_ranks(
        2,
        [](const Job& job) {
          const Group group(job);
          group.connect(ring(2));
          constexpr std::int64_t kCount = 30'000;
          std::vector<Values<float>> given;
          std::vector<Work> sent;
          const int self = job.rank();
          const int other = 1 - self;
          const std::int64_t ahead = self == 0 ? 3 : 0;
          for (std::int64_t k = 0; k < 20; ++k) {
            given.push_back(message(self, other, k, kCount));
            sent.push_back(group.start().send(view(given.back()), other));
            if (k < ahead) continue;
            Values<float> taken(kCount);
            group.receive(view(taken), other);
            expect_message(taken, other, self, k - ahead);
          }
          for (std::int64_t k = 20 - ahead; k < 20; ++k) {
            Values<float> taken(kCount);
            group.receive(view(taken), other);
            expect_message(taken, other, self, k);
          }
        },
        options);
  }
}

// promise: group#messages-between-two-members
TEST(Messages, HaveTheirLinksFromConnectOn) {
  run_thread_ranks(
      3,
      [](const Job& job) {
        const Group group(job);
        group.connect(Pairs{{0, 1}, {1, 2}});
        const int other = job.rank() == 1 ? 2 : 1;
        for (const auto& [from, to] : Pairs{{job.rank(), other}, {other, job.rank()}}) {
          EXPECT_TRUE(group.state()->channels().way(from, to)->link().is_connected());
        }
      },
      on(even_hosts(3, 3)));
}

// promise: group#messages-between-two-members, group.h#send
TEST(Messages, AreComparedOnBothSides) {
  for (const auto& options : places(2)) {
    const auto outcome = try_thread_ranks(
        2,
        [](const Job& job) {
          const Group group(job, "stages");
          group.connect(ring(2));
          Values<float> values(10);
          if (job.rank() == 0) {
            group.send(view(values), 1, {.label = "activation"});
          } else {
            group.receive(view(values.data(), 9), 0, {.label = "gradient"});
          }
        },
        options);
    for (const int rank : {0, 1}) {
      EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]),
                   Mismatch);
      EXPECT_THAT(outcome.text(rank),
                  HasSubstr("members of group \"stages, from rank 0 to 1\" disagree in call 1: "
                            "rank 0: message float32[10] from rank 0 \"activation\"; rank 1: "
                            "message float32[9] from rank 0 \"gradient\""));
    }
  }
}

// promise: group#messages-between-two-members, group.h#connect, group.h#send
TEST(Messages, NeedAWayAndSayHowToMakeOne) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    float x = 1;
    const auto refused = [](const auto& call) {
      try {
        call();
      } catch (const InvalidArgument& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    group.connect(Pairs{{0, 1}});
    group.connect(Pairs{{1, 0}});  // is there already
    for (const int other : {2, job.rank(), -1, 3}) {
      EXPECT_THAT(refused([&] { group.send(view(&x, 1), other); }),
                  HasSubstr("connect() has not been called for them"));
      EXPECT_THAT(refused([&] { group.receive(view(&x, 1), other); }),
                  HasSubstr("connect() has not been called for them"));
    }
    for (const auto& pair : Pairs{{0, 0}, {0, 3}, {-1, 1}}) {
      EXPECT_THAT(refused([&] { group.connect(Pairs{pair}); }),
                  HasSubstr("are not two of the 3 ranks of group \"world\""));
    }
    if (job.rank() == 0) group.send(view(&x, 1), 1);
    if (job.rank() == 1) group.receive(view(&x, 1), 0);
  });
}

// promise: group.h#connect
TEST(Messages, OtherPairsOnAnotherMemberAreAMismatch) {
  const auto outcome = try_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    group.connect(job.rank() == 1 ? Pairs{{0, 1}, {1, 2}} : Pairs{{0, 1}});
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.text(rank),
                AllOf(HasSubstr("disagree in call 1"), HasSubstr(": 0-1 1-2\"")));
  }
}

// promise: group#messages-between-two-members, group.h#send
TEST(Messages, TwoThatBothSendFirstAreToldThatTheyWaitForOneAnother) {
  for (const auto& options : places(2)) {
    const auto outcome = try_thread_ranks(
        2,
        [](const Job& job) {
          const Group group(job);
          group.connect(ring(2));
          float x = 1;
          group.send(view(&x, 1), 1 - job.rank());
        },
        options);
    for (const int rank : {0, 1}) {
      EXPECT_THAT(outcome.text(rank), HasSubstr("workers wait for one another"));
    }
  }
}

// promise: group#messages-between-two-members
TEST(Messages, FromAWorkerThatDiesArePeerLostAndOtherPairsGoOn) {
  for (auto& options : places(3)) {
    if (!options.world) options.world = std::make_shared<ThreadWorld>(3);
    std::atomic<int> over{0};
    const auto outcome = try_thread_ranks(
        3,
        [&](const Job& job) {
          const Group group(job);
          group.connect(Pairs{{0, 1}, {1, 2}, {0, 2}});
          Values<float> values(100'000);
          const auto meet = [&] {
            ++over;
            while (over < 3) std::this_thread::yield();
          };
          if (job.rank() == 2) {
            options.world->kill(2);
            if (auto* hosts = options.world->hosts()) hosts->kill(2);
            return meet();
          }
          try {
            if (job.rank() == 0) group.receive(view(values), 2);
            if (job.rank() == 1) group.send(view(values), 2);
          } catch (const PeerLost& e) {
            EXPECT_EQ(e.rank(), 2);
            ++over;
            if (job.rank() == 0) group.send(view(values), 1);
            if (job.rank() == 1) group.receive(view(values), 0);
            while (over < 3) std::this_thread::yield();
            throw;
          }
          ADD_FAILURE() << "nobody was lost";
          meet();
        },
        options);
    expect_lost(outcome, {0, 1}, 2);
  }
}

/// Ranks 0 to 3 in a row, of which rank 0 dies once all are in connect(): only rank 1 waits for it.
void expect_lost_while_ways_are_made(ThreadOptions options, bool stays) {
  const Pairs row = {{0, 1}, {1, 2}, {2, 3}};
  options.job.deadline = std::chrono::seconds(10);
  if (!options.world) options.world = std::make_shared<ThreadWorld>(4);
  std::atomic<int> over{0};
  const auto wait_for_all = [&] {
    ++over;
    while (over < 4) std::this_thread::yield();
  };
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        const Group group(job);
        if (job.rank() == 0) {
          const std::string text = " 0-1 1-2 2-3";
          group.barrier({.label = fmt::format("connect {:x}:{}", digest(text), text)});
          options.world->kill(0);
          if (auto* hosts = options.world->hosts()) hosts->kill(0);
          return wait_for_all();
        }
        try {
          group.connect(row);
        } catch (const Error&) {
          stays ? wait_for_all() : static_cast<void>(++over);
          throw;
        }
      },
      options);
  expect_lost(outcome, {1, 2, 3}, 0);
}

// promise: group#messages-between-two-members, group.h#connect
TEST(Messages, WhereOneMemberIsLostWhileWaysAreMadeNobodyWaitsForItsNeighbour) {
  for (const auto& options : places(4)) expect_lost_while_ways_are_made(options, true);
}

// promise: group#messages-between-two-members
TEST(Messages, AMemberThatLeavesBecauseAnotherIsLostWhileWaysAreMadeIsNotTheLostOne) {
  for (const auto& options : places(4)) expect_lost_while_ways_are_made(options, false);
}

}  // namespace
}  // namespace tutti::test
