#include "sync/plan/assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "base/check.h"
#include "kernels/fold_program.h"
#include "sync/nodes/leaf_folder.h"
#include "sync/own_board.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Ranges = std::vector<ShardRange>;

std::size_t nodes_of(const Ranges& ranges) {
  std::size_t nodes = 0;
  for (const auto& range : ranges) nodes += blocks_of_range(range.begin, range.end).size();
  return nodes;
}

double time_of(const Ranges& ranges, const std::vector<double>& speeds) {
  double time = 0;
  for (std::size_t w = 0; w < ranges.size(); ++w) {
    time = std::max(time, static_cast<double>(ranges[w].count()) / speeds[w]);
  }
  return time;
}

Ranges even_cut(std::int64_t shards, int workers) {
  Ranges ranges;
  for (int w = 0; w < workers; ++w) {
    const auto [begin, end] = share_of(shards, w, workers);
    ranges.push_back({begin, end});
  }
  return ranges;
}

/// In rank order, without a gap or an overlap, from 0 to `shards`.
void expect_cover(const Ranges& ranges, std::int64_t shards) {
  std::int64_t covered = 0;
  for (const auto& range : ranges) {
    ASSERT_EQ(range.begin, covered);
    ASSERT_GE(range.end, range.begin);
    covered = range.end;
  }
  ASSERT_EQ(covered, shards);
}

/// Every way to cut `shards` into contiguous ranges.
void for_each_cut(std::int64_t shards, std::size_t workers,
                  const std::function<void(const Ranges&)>& visit) {
  Ranges ranges;
  const std::function<void(std::int64_t)> extend = [&](std::int64_t begin) {
    const bool is_last = ranges.size() + 1 == workers;
    for (std::int64_t end = is_last ? shards : begin; end <= shards; ++end) {
      ranges.push_back({begin, end});
      is_last ? visit(ranges) : extend(end);
      ranges.pop_back();
    }
  };
  extend(0);
}

TEST(Assignment, EvenWorkersTakeEvenSubtrees) {
  EXPECT_THAT(assign_shards(8, 1), ElementsAre(ShardRange{0, 8}));
  EXPECT_THAT(assign_shards(8, 2), ElementsAre(ShardRange{0, 4}, ShardRange{4, 8}));
  EXPECT_EQ(assign_shards(8, 8)[5], (ShardRange{5, 6}));
  EXPECT_THAT(assign_shards(8, 3),
              ElementsAre(ShardRange{0, 3}, ShardRange{3, 6}, ShardRange{6, 8}));
}

TEST(Assignment, WorkersWithoutShardsAreTheLast) {
  EXPECT_THAT(assign_shards(2, 4),
              ElementsAre(ShardRange{0, 1}, ShardRange{1, 2}, ShardRange{2, 2}, ShardRange{2, 2}));
  EXPECT_THAT(assign_shards(1, 2), ElementsAre(ShardRange{0, 1}, ShardRange{1, 1}));
}

TEST(Assignment, FasterWorkersTakeMore) {
  EXPECT_THAT(assign_shards(12, std::vector<double>{2, 1, 1}, 0),
              ElementsAre(ShardRange{0, 6}, ShardRange{6, 9}, ShardRange{9, 12}));
  EXPECT_THAT(assign_shards(6, std::vector<double>{1, 2e-300, 5e-324, 1}),
              ElementsAre(ShardRange{0, 3}, ShardRange{3, 3}, ShardRange{3, 3}, ShardRange{3, 6}));
}

// promise: trainer_options.h#speeds
TEST(Assignment, OnlyRatiosOfSpeedsCount) {
  const std::vector<double> speeds{1.5, 0.25, 3};
  const std::vector<double> doubled{3, 0.5, 6};
  EXPECT_EQ(assign_shards(37, speeds), assign_shards(37, doubled));
}

TEST(Assignment, ToleranceBuysSubtrees) {
  const auto strict = assign_shards(100, 3, 0);
  const auto loose = assign_shards(100, 3, 0.10);
  EXPECT_EQ(time_of(strict, {1, 1, 1}), 34);
  EXPECT_LE(time_of(loose, {1, 1, 1}), 34 * 1.10);
  EXPECT_LT(nodes_of(loose), nodes_of(strict));
}

// Against all possible cuts: as quick as asked for; of those, none with fewer nodes; of those, none
// that is quicker; of those, none in which rank 0 has more.
TEST(Assignment, NoCutIsBetter) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> speed(0.3, 3.0);
  for (std::size_t workers = 1; workers <= 4; ++workers) {
    for (std::int64_t shards = 1; shards <= 18; ++shards) {
      for (const double tolerance : {0.0, 0.05, 0.3, 1.0}) {
        std::vector<double> speeds(workers, 1.0);
        if (random() % 2) std::ranges::generate(speeds, [&] { return speed(random); });
        double least = std::numeric_limits<double>::max();
        for_each_cut(shards, workers,
                     [&](const Ranges& cut) { least = std::min(least, time_of(cut, speeds)); });
        const double allowed = least * (1 + tolerance);
        const auto rank = [&](const Ranges& cut) {
          return std::tuple(nodes_of(cut), time_of(cut, speeds), -cut[0].count());
        };
        const auto ranges = assign_shards(shards, speeds, tolerance);
        ASSERT_EQ(ranges.size(), workers);
        expect_cover(ranges, shards);
        ASSERT_LE(time_of(ranges, speeds), allowed);
        for_each_cut(shards, workers, [&](const Ranges& cut) {
          if (time_of(cut, speeds) > allowed) return;
          ASSERT_LE(rank(ranges), rank(cut));
        });
      }
    }
  }
}

TEST(Assignment, IsNeverMoreNodesThanThePlainEvenCut) {
  bool fewer = false;
  for (int workers = 1; workers <= 12; ++workers) {
    for (std::int64_t shards = 1; shards <= 150; ++shards) {
      const auto even = even_cut(shards, workers);
      const auto longest = static_cast<double>(even[0].count());
      for (const double tolerance : {0.0, kSubtreeTolerance}) {
        const auto ranges = assign_shards(shards, workers, tolerance);
        expect_cover(ranges, shards);
        ASSERT_LE(nodes_of(ranges), nodes_of(even)) << shards << " over " << workers;
        ASSERT_LE(time_of(ranges, std::vector<double>(ranges.size(), 1)),
                  longest * (1 + tolerance));
        fewer = fewer || nodes_of(ranges) < nodes_of(even);
      }
    }
  }
  EXPECT_TRUE(fewer);
}

// Fails by the test's time limit if the search grows with the number of shards.
TEST(Assignment, ManyShardsAndWorkersAreNoTrouble) {
  for (const std::int64_t shards : {1000, 4096, 4097, 100000}) {
    for (const int workers : {1, 2, 7, 64}) {
      std::vector<double> speeds(static_cast<std::size_t>(workers));
      for (std::size_t w = 0; w < speeds.size(); ++w)
        speeds[w] = 1 + 0.1 * static_cast<double>(w % 7);
      expect_cover(assign_shards(shards, workers), shards);
      expect_cover(assign_shards(shards, speeds, 10), shards);
    }
  }
  EXPECT_EQ(nodes_of(assign_shards(4096, 64)), 64u);
}

TEST(Assignment, WhatMakesNoSenseIsRefused) {
  const auto by = [](const std::vector<double>& speeds, double tolerance = 0) {
    return [=] { assign_shards(4, speeds, tolerance); };
  };
  EXPECT_THAT([] { assign_shards(0, 2); }, ThrowsMessage<InvalidArgument>(HasSubstr("0 shards")));
  EXPECT_THAT([] { assign_shards(-1, 2); }, ThrowsMessage<InvalidArgument>(HasSubstr("-1 shards")));
  EXPECT_THAT([] { assign_shards(4, 0); }, ThrowsMessage<InvalidArgument>(HasSubstr("0 workers")));
  EXPECT_THAT(by({1, 0}), ThrowsMessage<InvalidArgument>(HasSubstr("rank 1 has speed 0")));
  EXPECT_THAT(by({-1}), ThrowsMessage<InvalidArgument>(HasSubstr("rank 0 has speed -1")));
  EXPECT_THAT(by({NAN}), ThrowsMessage<InvalidArgument>(HasSubstr("speed nan")));
  EXPECT_THAT(by({1, 1, INFINITY}),
              ThrowsMessage<InvalidArgument>(HasSubstr("rank 2 has speed inf")));
  EXPECT_THAT(by({1}, -0.1), ThrowsMessage<InvalidArgument>(HasSubstr("tolerance -0.1")));
  EXPECT_THAT(by({1}, NAN), ThrowsMessage<InvalidArgument>(HasSubstr("tolerance nan")));
}

/// Slots that a real folder uses for a range: gradients that arrive whole are folded while hot.
int slots_used(const ShardRange& range, bool hot) {
  const Plan plan({{"p", {1}, {1}, 1, DType::float32}}, {});
  std::vector<std::byte> arena(plan.arena_bytes(kMaxSlots));
  const OwnBoard board(1);
  LeafFolder folder(plan, arena.data(), *board, LeafFolder::Options{}, {});
  folder.set_start(range.begin);
  const float gradient = 1;
  for (auto leaf = range.begin; leaf < range.end; ++leaf) {
    folder.begin_leaf(1);
    folder.write(0, &gradient, hot);
    folder.end_leaf();
  }
  EXPECT_EQ(static_cast<int>(folder.nodes().size()), node_count(range));
  return folder.slots_used();
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(NodeCount, IsWhatAFolderHolds) {
  for (std::int64_t end = 0; end <= 70; ++end) {
    for (std::int64_t begin = 0; begin <= end; ++begin) {
      const ShardRange range{begin, end};
      ASSERT_EQ(static_cast<std::size_t>(node_count(range)), blocks_of_range(begin, end).size());
      if (range.count() == 0) continue;
      ASSERT_EQ(slots_used(range, false), nodes_in_flight(range)) << begin << " to " << end;
      ASSERT_LE(slots_used(range, true), nodes_in_flight(range));
      ASSERT_LE(nodes_in_flight(range), max_nodes(range.count()));
    }
  }
  EXPECT_EQ(nodes_in_flight({5, 5}), 0);
}

// Ranges across a number with many zeros at its end: up by blocks of every size, down likewise.
// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(NodeCount, BoundIsReached) {
  for (int power = 0; power <= 10; ++power) {
    const std::int64_t size = std::int64_t{1} << power;
    const ShardRange range{4 * size - (size - 1), 4 * size + size};
    EXPECT_EQ(nodes_in_flight(range), 2 * power + 1);
    EXPECT_EQ(nodes_in_flight(range), max_nodes(range.count()));
  }
  EXPECT_THROW(max_nodes(0), InternalError);
}

}  // namespace
}  // namespace tutti::test
