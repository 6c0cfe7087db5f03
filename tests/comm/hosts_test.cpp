// Groups whose members are on several hosts, each with a memory of its own: ranks are threads, or
// processes where they are killed.

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>

#include "base/system.h"
#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "comm/local/ending.h"
#include "comm/on_hosts.h"
#include "job/job_state.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "support/process_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

View view_of(const Values<float>& values) {
  return {values.data(), values.count(), DType::float32};
}

/// What rank 0 has after each kind of collective, in a row.
std::vector<float> results(const Group& group, std::int64_t count) {
  const int size = group.size();
  std::vector<float> all;
  const auto keep = [&](const Values<float>& values) {
    all.insert(all.end(), values.data(), values.data() + values.count());
  };
  const auto seed = static_cast<std::uint64_t>(group.rank() + 1);
  auto mine = Values<float>::random(count, seed);
  Values<float> out(count);
  group.all_reduce(view_of(mine), view_of(out), Reduction::sum);
  keep(out);
  group.all_reduce(view_of(mine), view_of(out), Reduction::max);
  keep(out);
  group.reduce(view_of(mine), view_of(out), Reduction::mean, 0);
  if (group.rank() == 0) keep(out);
  Values<float> gathered(count * size);
  group.all_gather(view_of(mine), view_of(gathered));
  keep(gathered);
  Values<float> part(count);
  group.reduce_scatter(view_of(gathered), view_of(part), Reduction::sum);
  keep(part);
  group.broadcast(view_of(mine), size - 1);
  keep(mine);
  group.barrier();
  return all;
}

// promise: clusters#several-hosts
TEST(Hosts, EveryCollectiveGivesTheBytesOfOneHost) {
  // Within an inline buffer, above it, and in several pieces.
  for (const std::int64_t count : {5, 5000, kSanitized ? 140'000 : 300'000}) {
    std::vector<float> expected;
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const auto mine = results(Group(job), count);
          if (job.rank() == 0) expected = mine;
        },
        on({{0, 1, 2, 3}}));
    for (const auto& hosts : kHosts) {
      run_thread_ranks(
          4,
          [&](const Job& job) {
            const Group group(job);
            const auto mine = results(group, count);
            if (job.rank() == 0) {
              ASSERT_EQ(mine.size(), expected.size());
              EXPECT_EQ(std::memcmp(mine.data(), expected.data(), mine.size() * sizeof(float)), 0);
            }
          },
          on(hosts));
    }
  }
}

TEST(Hosts, AGroupOfOneHostHasNothingToDoWithTheOthers) {
  run_thread_ranks(
      4,
      [](const Job& job) {
        const Group group(job);
        const Group here = group.split(job.rank() / 2, "here");
        EXPECT_FALSE(here.state()->spans_hosts());
        int value = 1 << job.rank();
        here.all_reduce({&value, 1, DType::int32}, Reduction::sum);
        EXPECT_EQ(value, job.rank() < 2 ? 3 : 12);
        const Group across = group.split(job.rank() % 2, "across");
        EXPECT_TRUE(across.state()->spans_hosts());
        across.all_reduce({&value, 1, DType::int32}, Reduction::sum);
        EXPECT_EQ(value, 15);
      },
      on({{0, 1}, {2, 3}}));
}

TEST(Hosts, TeamsAreTheMembersOfAHost) {
  run_thread_ranks(
      5,
      [](const Job& job) {
        const Group group(job, job.rank() == 0 ? std::vector<int>{0} : std::vector<int>{1, 2, 3, 4},
                          job.rank() == 0 ? "first" : "others");
        if (job.rank() == 0) return;
        const Team& team = group.state()->team();
        const bool is_first_host = job.rank() == 2;
        EXPECT_EQ(team.members,
                  is_first_host ? std::vector<int>({1}) : std::vector<int>({0, 2, 3}));
        EXPECT_EQ(team.member(team.rank), group.rank());
        EXPECT_EQ(team.deputy_of(group.rank()), team.rank);
        EXPECT_LT(team.deputy_of(is_first_host ? 3 : 1), team.size());
      },
      on({{0, 2}, {1, 3, 4}}));
}

TEST(Hosts, WhoDisagreesIsNamedOnAllHosts) {
  const auto outcome = try_thread_ranks(
      3,
      [](const Job& job) {
        const Group group(job);
        float x = 0;
        group.all_reduce({&x, 1, DType::float32}, Reduction::sum,
                         {.label = job.rank() == 2 ? "other" : "loss"});
      },
      on({{0, 1}, {2}}));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("ranks 0 1: all-reduce sum float32[1] \"loss\""));
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 2: all-reduce sum float32[1] \"other\""));
  }
}

TEST(Hosts, WhoDoesNotComeIsNamedOnAllHosts) {
  const auto outcome = try_thread_ranks(
      3,
      [](const Job& job) {
        const Group group(job);
        const Group late(job, "late");
        if (job.rank() == 1) return std::this_thread::sleep_for(milliseconds(600));
        late.barrier({.label = "epoch", .deadline = milliseconds(200)});
      },
      on({{0}, {1}, {2}}));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 1 has not reached barrier \"epoch\""));
  }
}

TEST(Hosts, ABusyWorkerOfAnotherHostIsWaitedFor) {
  run_thread_ranks(
      2,
      [](const Job& job) {
        const Group group(job);
        if (job.rank() == 1) {
          const auto busy = job.busy("evaluate", seconds(60));
          group.barrier();  // the other one knows
          std::this_thread::sleep_for(milliseconds(500));
          group.barrier({.label = "after"});
          return;
        }
        group.barrier();
        group.barrier({.label = "after", .deadline = milliseconds(150)});
      },
      on({{0}, {1}}));
}

/// Rank `victim` of 4 is killed; the others get PeerLost of it within `limit`.
void expect_lost(const std::vector<RankSet>& hosts, int victim) {
  const auto outcome = run_processes(
      HostMap::of(hosts),
      [&](int rank, FileDescriptor socket) {
        Identity identity{rank, 4, 1};
        identity.hosts = HostMap::of(hosts);
        const Job job(std::make_shared<JobState>(
            identity, host_system(), connect_to_first(std::move(socket), "a test", 0, rank, 4),
            JobOptions{}));
        const Group group(job);
        group.barrier();
        if (rank == victim) ::raise(SIGKILL);
        const auto begin = Clock::now();
        try {
          group.barrier();
          ADD_FAILURE() << "a barrier without rank " << victim;
        } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.rank(), victim) << lost.what();
          EXPECT_LT(Clock::now() - begin, seconds(2));  // the machine may be loaded
        }
      },
      seconds(60));
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(outcome.ranks[static_cast<std::size_t>(rank)].good()) << outcome.describe();
  }
}

// promise: clusters#a-worker-or-a-host-that-dies
TEST(Hosts, AKilledWorkerIsLostOnAllHosts) {
  for (const int victim : {0, 1, 2, 3}) expect_lost({{0, 1}, {2, 3}}, victim);
  for (const int victim : {0, 3}) expect_lost({{0}, {1}, {2}, {3}}, victim);
}

// promise: clusters#a-worker-or-a-host-that-dies
TEST(Hosts, AHostWhoseConnectionEndsIsLostOnAllHosts) {
  ThreadOptions options = on({{0, 1}, {2, 3}});
  std::atomic<int> there{0};
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        const Group group(job);
        group.barrier();
        if (++there == 4) options.world->hosts()->cut(1);
        while (true) group.barrier();
      },
      options);
  for (int rank = 0; rank < 4; ++rank) {
    try {
      std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]);
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank() >= 2, rank < 2) << lost.what();  // one of the other host
    }
  }
}

/// The part of a member that no other host has does not count for itself either.
TEST(Hosts, ACallWhosePartDidNotReachTheOthersInTimeFailsOnAll) {
  ThreadOptions options = on({{0}, {1}});
  std::atomic<bool> is_held{false};
  const auto outcome = try_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        group.barrier();
        const auto until = [](const std::atomic<bool>& flag) {
          while (!flag) std::this_thread::sleep_for(milliseconds(1));
        };
        if (job.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(50));  // what came before is through
          options.world->hosts()->hold(1, true);
          is_held = true;
          std::this_thread::sleep_for(milliseconds(50));  // rank 0 has come
          group.barrier({.label = "held"});
          return;
        }
        until(is_held);
        try {
          group.barrier({.label = "held", .deadline = milliseconds(300)});
        } catch (...) {
          options.world->hosts()->hold(1, false);
          throw;
        }
      },
      options);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 1 has not reached barrier \"held\""));
  }
}

/// So that no proof of a deadlock names those whose arrivals wait behind a connection that stalls.
TEST(Hosts, AStoreOnItsWayThroughTheOrderOfAllHostsIsSeenOnTheBoard) {
  ThreadOptions options = on({{0}, {1, 2}});
  std::atomic<bool> is_held{false}, was_on_its_way{false}, may_go_on{false};
  run_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job);
        group.barrier();
        const WorkerSlot& slot = job.state()->slot(2);
        const auto under_way = [&] { return slot.stores_sent - slot.stores_done; };
        const auto end = Clock::now() + seconds(10);
        if (job.rank() == 0) {
          std::this_thread::sleep_for(milliseconds(50));  // what came before is through
          options.world->hosts()->hold(1, true);
          is_held = true;
          while (!may_go_on && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
          options.world->hosts()->hold(1, false);
        }
        while (!is_held) std::this_thread::sleep_for(milliseconds(1));
        if (job.rank() == 1) {
          while (under_way() == 0 && Clock::now() < end) std::this_thread::yield();
          std::this_thread::sleep_for(milliseconds(20));
          was_on_its_way = under_way() > 0;
          may_go_on = true;
        }
        group.barrier();
        if (job.rank() == 0) return;  // another host does not see what was sent
        while (under_way() != 0 && Clock::now() < end) std::this_thread::yield();
        EXPECT_EQ(under_way(), 0u);
      },
      options);
  EXPECT_TRUE(was_on_its_way);
}

/// All hosts report the same one of two reasons that are found at once.
TEST(Hosts, AllHaveTheSameReasonOfTwo) {
  constexpr std::size_t kEndings = 30;
  std::array<std::array<std::string, 2>, kEndings> texts;
  std::atomic<int> there{0};
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        const auto memory = group.allocate(kEndings * sizeof(Ending));
        auto* const endings = reinterpret_cast<Ending*>(memory.block(0));
        for (std::size_t k = 0; k < kEndings; ++k) {
          ++there;
          while (there < 2 * static_cast<int>(k + 1)) std::this_thread::yield();
          end_with(*job.state(), endings[k],
                   {.found_by = job.rank(), .text = "found by " + std::to_string(job.rank())}, 1,
                   [](int) { return 1U; });
        }
        group.barrier();
        for (std::size_t k = 0; k < kEndings; ++k) {
          texts[k][static_cast<std::size_t>(job.rank())] = reason_of(endings[k], *job.state()).text;
        }
      },
      on({{0}, {1}}));
  for (const auto& pair : texts) EXPECT_EQ(pair[0], pair[1]);
}

/// Members that end a group at the moment at which the last one comes agree on the call that fails.
TEST(Hosts, AllAgreeWhichCallFailsWhateverTheMoment) {
  for (int attempt = 0; attempt < 40; ++attempt) {
    std::array<int, 4> calls{};
    try_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          group.barrier();
          const auto rank = static_cast<std::size_t>(job.rank());
          for (; calls[rank] < 100; ++calls[rank]) {
            if (rank == 3 && calls[rank] == 5) {
              std::this_thread::sleep_for(milliseconds(30) +
                                          std::chrono::microseconds(attempt * 500));
            }
            group.barrier({.deadline = milliseconds(rank == 0 ? 40 : 10'000)});
            if (calls[rank] == 10) return;
          }
        },
        on(kHosts[static_cast<std::size_t>(attempt) % kHosts.size()]));
    for (const int one : calls) EXPECT_EQ(one, calls[0]) << "attempt " << attempt;
  }
}

}  // namespace
}  // namespace tutti::test
