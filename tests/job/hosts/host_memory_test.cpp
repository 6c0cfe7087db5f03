// Stores that arrive from other hosts.

#include "job/hosts/host_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/system.h"

namespace tutti::test {
namespace {

constexpr std::uint64_t kBlock = 77;
constexpr std::size_t kBytes = 4096;

struct Place {
  Place() : system(host_system()), memory(system, {0, 1}) {
    file = system->create_memory("a block", kBytes);
    mapped = system->map(file, kBytes);
    memory.hold(0, kBlock, file, kBytes);
  }
  std::atomic<std::uint64_t>& word(std::size_t offset) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapped.get() + offset);
  }
  /// The first word after another host's worker has stored to it.
  std::uint64_t store(std::uint64_t value) {
    StoreMessage message;
    message.word({kBlock, 0}, value, 8);
    memory.apply(message.take(), false);
    return word(0).load();
  }
  std::shared_ptr<System> system;
  HostMemory memory;
  FileDescriptor file;
  std::shared_ptr<std::byte> mapped;
};

TEST(HostMemory, DataAndWordsArriveInTheirOrder) {
  Place place;
  StoreMessage message;
  const char text[] = "published";
  message.data({kBlock, 100}, text, sizeof text);
  message.word({kBlock, 8}, 5, 8);
  message.word({kBlock, 16}, 6, 4);
  place.memory.apply(message.take(), false);
  EXPECT_STREQ(reinterpret_cast<const char*>(place.mapped.get()) + 100, "published");
  EXPECT_EQ(place.word(8), 5U);
  EXPECT_EQ(place.word(16), 6U);
}

TEST(HostMemory, OnTheWritersOwnHostDataStaysAndWordsArrive) {
  Place place;
  StoreMessage message;
  const std::uint64_t value = 9;
  message.data({kBlock, 0}, &value, sizeof value);
  message.word({kBlock, 8}, 5, 8);
  message.word({kBlock, 16}, 6, 8, true);
  place.memory.apply(message.take(), true);
  EXPECT_EQ(place.word(0), 0U);
  EXPECT_EQ(place.word(8), 5U);
  EXPECT_EQ(place.word(16), 0U);
}

TEST(HostMemory, OfTwoThatDecideTheFirstSucceeds) {
  Place place;
  const auto decide = [&](std::uint64_t desired, std::uint64_t belongs) {
    StoreMessage message;
    message.exchange({kBlock, 0}, 0, desired, 8);
    message.word({kBlock, 8}, belongs, sizeof belongs);
    place.memory.apply(message.take(), true);
  };
  decide(3, 30);
  decide(4, 40);
  EXPECT_EQ(place.word(0), 3U);
  EXPECT_EQ(place.word(8), 30U);
}

TEST(HostMemory, TimesAreOnesOfThisHostsClock) {
  Place place;
  StoreMessage message;
  message.time({kBlock, 0}, std::chrono::nanoseconds(std::chrono::hours(1)).count());
  place.memory.apply(message.take(), false);
  const auto until = Clock::time_point(std::chrono::nanoseconds(place.word(0).load()));
  EXPECT_GT(until, place.system->now() + std::chrono::minutes(59));
  EXPECT_LE(until, place.system->now() + std::chrono::hours(1));
  message.time({kBlock, 0}, 0);
  place.memory.apply(message.take(), false);
  EXPECT_EQ(place.word(0), 0U);
}

TEST(HostMemory, WhatLiesOutsideIsSkipped) {
  Place place;
  StoreMessage message;
  const std::uint64_t value = 9;
  message.data({kBlock, kBytes - 4}, &value, sizeof value);
  message.word({kBlock, kBytes}, 1, 8);
  message.word({kBlock + 1, 0}, 1, 8);
  message.word({kBlock, ~std::uint64_t{0} - 3}, 1, 8);
  message.word({kBlock, 12}, 1, 8);  // an atomic lies at a multiple of its size
  message.word({kBlock, 24}, 7, 8);
  place.memory.apply(message.take(), false);
  EXPECT_EQ(place.word(24), 7U);
  for (std::size_t offset = 0; offset < kBytes; offset += 8) {
    EXPECT_EQ(place.word(offset), offset == 24 ? 7U : 0U) << offset;
  }
}

TEST(HostMemory, ABlockIsKnownAsLongAsAWorkerHoldsIt) {
  Place place;
  place.memory.hold(1, kBlock, {}, kBytes);
  place.memory.let_go(0, kBlock);
  EXPECT_EQ(place.store(1), 1U);
  place.memory.end(1);
  EXPECT_EQ(place.store(2), 1U);
}

/// The maker of memory may die before those to whom it has given it hold it.
TEST(HostMemory, ABlockOutlivesItsMakerForThoseWhoAreAboutToHoldIt) {
  Place place;
  place.memory.end(0);
  EXPECT_EQ(place.store(1), 1U);
  place.memory.hold(1, kBlock, {}, kBytes);
  EXPECT_EQ(place.store(2), 2U);
  place.memory.end(1);
  EXPECT_EQ(place.store(3), 2U);
}

TEST(HostMemory, TheBoardTellsWhoHasEnded) {
  const auto system = host_system();
  HostMemory memory(system, {0});
  memory.end(3);  // before the board is there
  const auto file = system->create_memory("board", sizeof(Board));
  const auto mapped = system->map(file, sizeof(Board));
  const auto& board = *reinterpret_cast<Board*>(mapped.get());
  memory.hold(0, kBoardBlock, file, sizeof(Board));
  memory.end(5);
  EXPECT_EQ(board.workers[3].ended, 1U);
  EXPECT_EQ(board.workers[5].ended, 1U);
  EXPECT_EQ(board.workers[4].ended, 0U);
}

}  // namespace
}  // namespace tutti::test
