// Memory that is copied to all hosts: over simulated links, and over TCP.

#include "comm/host_copies.h"

#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include "comm/group_state.h"
#include "comm/link/link_engine.h"
#include "comm/on_hosts.h"
#include "job/job_state.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = 1'000'000;

std::byte value_of(int member, std::size_t at) {
  return static_cast<std::byte>(1 + member * 37 + static_cast<int>(at % 101));
}

/// A piece of each member, one after the other: of 0, 1, 65 and most bytes.
std::vector<HostPiece> pieces_in(std::byte* memory) {
  return {{0, memory, 65}, {1, memory + 65, 1}, {2, memory + 66, 0}, {3, memory + 66, kBytes - 66}};
}

/// Each host fills the pieces of its members, and all find all of them.
void copy_and_compare(const Group& group) {
  const auto memory = group.allocate_common(kBytes);
  const auto pieces = pieces_in(memory.data());
  const GroupState& state = *group.state();
  for (const auto& piece : pieces) {
    if (piece.member != group.rank()) continue;
    for (std::size_t at = 0; at < piece.bytes; ++at) piece.at[at] = value_of(piece.member, at);
  }
  group.barrier();
  copy_to_hosts(group, pieces, {.label = "pieces"});
  for (const auto& piece : pieces) {
    std::size_t wrong = 0;
    for (std::size_t at = 0; at < piece.bytes; ++at) {
      wrong += piece.at[at] != value_of(piece.member, at);
    }
    EXPECT_EQ(wrong, 0u) << "piece of " << piece.member << " on host "
                         << state.host_of(group.rank());
  }
  group.barrier();
}

// promise: links#what-travels-between-hosts
TEST(HostCopies, APieceGoesFromItsHostToEachOtherOneAndNowhereElse) {
  for (const auto& hosts : kHosts) {
    auto options = on(hosts);
    std::array<std::uint64_t, 4> by_hub{};
    std::array<std::uint64_t, 4> from{};
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          copy_and_compare(group);
          copy_and_compare(group);
          const auto rank = static_cast<std::size_t>(job.rank());
          by_hub[rank] = job.state()->bytes_to_hosts();
          if (rank != 0) return group.barrier();
          for (std::size_t host = 0; host < hosts.size(); ++host) {
            from[host] = options.world->hosts()->link_bytes_from(static_cast<int>(host));
          }
          group.barrier();
        },
        options);
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      std::uint64_t own = 0;
      for (const auto& piece : pieces_in(nullptr)) {
        if (hosts[host].contains(piece.member)) own += piece.bytes;
      }
      EXPECT_EQ(from[host], 2 * (hosts.size() - 1) * own) << "host " << host;
    }
    for (const auto bytes : by_hub) EXPECT_LT(bytes, 20'000u);
  }
}

TEST(HostCopies, OverTcpTheyAreTheSame) {
  for (const auto& hosts : kHosts) {
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          if (job.rank() == 0) set_link_engine({});
          group.barrier();
          copy_and_compare(group);
        },
        on(hosts));
  }
}

TEST(HostCopies, WhatIsCopiedIsThatOfTheHostOfRankZeroUnlessSaid) {
  run_thread_ranks(
      4,
      [](const Job& job) {
        const Group group(job);
        const auto memory = group.allocate_common(100'000);
        auto* const bytes = memory.data();
        if (group.rank() == 0) std::memset(bytes, 7, 100'000);
        group.barrier();
        EXPECT_EQ(static_cast<int>(bytes[99'999]), job.rank() < 2 ? 7 : 0);
        copy_to_hosts(group, bytes, 100'000);
        EXPECT_EQ(static_cast<int>(bytes[0]), 7);
        EXPECT_EQ(static_cast<int>(bytes[99'999]), 7);
      },
      on({{0, 1}, {2, 3}}));
}

TEST(HostCopies, NothingIsOverwrittenBeforeAllHaveCome) {
  run_thread_ranks(
      3,
      [](const Job& job) {
        const Group group(job);
        const auto memory = group.allocate_common(10'000);
        auto* const bytes = memory.data();
        copy_to_hosts(group, bytes, 10'000);  // there is a link
        if (group.rank() == 0) std::memset(bytes, 7, 10'000);
        if (group.rank() == 2) {
          std::this_thread::sleep_for(milliseconds(100));
          EXPECT_EQ(static_cast<int>(bytes[0]), 0);
        }
        copy_to_hosts(group, bytes, 10'000);
        EXPECT_EQ(static_cast<int>(bytes[0]), 7);
      },
      on({{0}, {1, 2}}));
}

/// The copies of a group that has a link already, after `harm` by rank 0 and during its thread.
ThreadOutcome copy_after(const ThreadOptions& options, const std::function<std::jthread()>& harm,
                         std::optional<milliseconds> deadline = {}) {
  return try_thread_ranks(
      4,
      [&](const Job& job) {
        const Group group(job);
        copy_and_compare(group);
        const auto memory = group.allocate_common(1000);
        std::jthread harming;
        if (job.rank() == 0) harming = harm();
        group.barrier();
        try {
          copy_to_hosts(group, memory.data(), 1000, {.label = "state", .deadline = deadline});
          ADD_FAILURE() << "copied over a link that is broken";
        } catch (const Error& e) {
          const std::string text = e.what();
          try {
            group.barrier();
            ADD_FAILURE() << "the group has ended";
          } catch (const Error& again) {
            EXPECT_EQ(again.what(), text);
          }
          throw;
        }
      },
      options);
}

TEST(HostCopies, ALinkThatBreaksIsPeerLostOnAllThatNamesTheHost) {
  auto options = on({{0, 1}, {2, 3}});
  const auto outcome = copy_after(options, [&] {
    options.world->hosts()->break_links(1);
    return std::jthread();
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("the link to the host of rank"));
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), PeerLost);
  }
}

TEST(HostCopies, AHostFromWhichNothingComesIsNamedAtTheDeadline) {
  auto options = on({{0}, {1}, {2}, {3}});
  const auto outcome = copy_after(
      options,
      [&] {
        options.world->hosts()->silence_links(0);
        return std::jthread();
      },
      milliseconds(300));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), Timeout);
    EXPECT_THAT(outcome.text(rank),
                HasSubstr("not reached copy of \"state\" to other hosts, group \"world\""));
  }
}

TEST(HostCopies, AWorkerThatDiesWhileItCopiesIsPeerLost) {
  auto options = on({{0, 1, 2}, {3}});
  const auto outcome = copy_after(options, [&] {
    options.world->hosts()->silence_links(1);
    return std::jthread([&] {
      std::this_thread::sleep_for(milliseconds(100));  // most likely all wait for the link
      options.world->hosts()->kill(3);
    });
  });
  for (const int rank : {0, 1, 2}) {
    try {
      std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]);
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank(), 3) << lost.what();
    }
  }
}

}  // namespace
}  // namespace tutti::test
