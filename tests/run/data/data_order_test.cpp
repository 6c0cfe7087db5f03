#include "run/data/data_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "sync/plan/assignment.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using Indices = std::vector<std::int64_t>;
using Step = std::vector<Indices>;  // per shard

Step step_of(DataOrder& order, const DataRequest& request, std::int64_t shards) {
  Step step;
  for (std::int64_t s = 0; s < shards; ++s) step.push_back(order.indices(request, s));
  order.advance(request, shards);
  return step;
}

Indices counting(std::int64_t size) {
  Indices all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The definition: an epoch's samples in order, dealt out in batches; the last step gets the rest.
std::vector<Step> dealt(const Indices& epoch, std::size_t batch, std::size_t shards) {
  std::vector<Step> steps;
  for (std::size_t at = 0; at < epoch.size();) {
    Step step(shards);
    for (auto& shard : step) {
      while (shard.size() < batch && at < epoch.size()) shard.push_back(epoch[at++]);
    }
    steps.push_back(step);
  }
  return steps;
}

// promise: sample_order.h#SampleOrder, trainer.h#indices
TEST(DataOrder, EpochsAreDealtOutInBatchesAndHoldEverySampleOnce) {
  for (const std::int64_t size : {1, 2, 63, 64, 65}) {
    for (const std::int64_t shards : {1, 2, 3, 5, 8, 70}) {
      for (const std::int64_t batch : {1, 2, 7, 64, 100}) {
        for (const auto& kind : {SampleOrder::shuffled(), SampleOrder::sequential()}) {
          DataOrder order(5, kind);
          for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
            auto samples = counting(size);
            if (!kind.is_sequential()) samples = permutation_of(size, 5, epoch);
            EXPECT_TRUE(std::ranges::is_permutation(samples, counting(size)));
            for (const auto& expected : dealt(samples, static_cast<std::size_t>(batch),
                                              static_cast<std::size_t>(shards))) {
              ASSERT_EQ(order.position().epoch, epoch);
              ASSERT_EQ(step_of(order, {size, batch}, shards), expected);
            }
          }
          EXPECT_EQ(order.position(), (DataPosition{3, 0, 0}));
        }
      }
    }
  }
}

// Every worker asks for its own shards alone; together they see what a single one sees.
// promise: sample_order.h#SampleOrder
TEST(DataOrder, DoesNotDependOnWhoAsks) {
  const DataRequest request{101, 6};
  DataOrder alone(9);
  for (const int workers : {2, 3, 5}) {
    alone.restore({});
    const auto ranges = assign_shards(8, workers);
    std::vector<DataOrder> orders(ranges.size(), DataOrder(9));
    for (int steps = 0; steps < 7; ++steps) {
      Step together;
      for (std::size_t w = 0; w < ranges.size(); ++w) {
        for (auto s = ranges[w].begin; s < ranges[w].end; ++s) {
          together.push_back(orders[w].indices(request, s));
        }
        orders[w].advance(request, 8);
      }
      ASSERT_EQ(together, step_of(alone, request, 8));
    }
  }
}

TEST(DataOrder, ContinuesFromAnyPosition) {
  const DataRequest request{50, 4};
  DataOrder order(2);
  std::vector<DataPosition> positions;
  std::vector<Step> steps;
  for (int step = 0; step < 12; ++step) {
    positions.push_back(order.position());
    steps.push_back(step_of(order, request, 3));
  }
  for (std::size_t from = 0; from < steps.size(); ++from) {
    DataOrder again(2);
    again.restore(positions[from]);
    for (auto step = from; step < steps.size(); ++step) {
      ASSERT_EQ(step_of(again, request, 3), steps[step]);
    }
  }
}

TEST(DataOrder, CopyLooksAheadWithoutMovingTheOriginal) {
  DataOrder order(2);
  step_of(order, {50, 4}, 3);
  DataOrder ahead = order;
  const auto next = step_of(ahead, {50, 4}, 3);
  step_of(ahead, {50, 40}, 3);
  step_of(ahead, {50, 4}, 3);
  EXPECT_EQ(order.position(), (DataPosition{0, 12, 50}));
  EXPECT_EQ(step_of(order, {50, 4}, 3), next);
}

TEST(DataOrder, BatchMayChangeWithinAnEpoch) {
  DataOrder order(3, SampleOrder::sequential());
  EXPECT_THAT(step_of(order, {10, 2}, 2), ElementsAre(Indices{0, 1}, Indices{2, 3}));
  EXPECT_THAT(step_of(order, {10, 5}, 2), ElementsAre(Indices{4, 5, 6, 7, 8}, Indices{9}));
}

TEST(DataOrder, DataSetMayChangeBetweenEpochsOnly) {
  DataOrder order(3);
  order.check({10, 2});
  order.check({20, 2});
  order.advance({10, 2}, 2);
  const auto refused =
      HasSubstr("the data set has 20 samples, but epoch 0 began with 10, of which 4 are taken");
  EXPECT_THAT([&] { order.check({20, 2}); }, ThrowsMessage<InvalidArgument>(refused));
  EXPECT_THAT([&] { order.indices({20, 2}, 0); }, ThrowsMessage<InvalidArgument>(refused));
  EXPECT_THAT([&] { order.advance({20, 2}, 1); }, ThrowsMessage<InvalidArgument>(refused));
  EXPECT_EQ(order.position(), (DataPosition{0, 4, 10}));
  DataOrder resumed(3);
  resumed.restore(order.position());
  EXPECT_THAT([&] { resumed.check({20, 2}); }, ThrowsMessage<InvalidArgument>(refused));
  order.advance({10, 2}, 3);
  auto all = step_of(order, {20, 5}, 4);
  Indices seen;
  for (const auto& shard : all) seen.insert(seen.end(), shard.begin(), shard.end());
  EXPECT_TRUE(std::ranges::is_permutation(seen, counting(20)));
}

TEST(DataOrder, HugeRequestsDoNotOverflow) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  DataOrder order(3, SampleOrder::sequential());
  EXPECT_EQ(order.indices({3, kMost}, 0), counting(3));
  EXPECT_THAT(order.indices({3, kMost}, kMost), IsEmpty());
  EXPECT_THAT(order.indices({kMost, 2}, kMost / 2), ElementsAre(kMost - 1));
  order.advance({kMost, 1}, kMost - 1);
  EXPECT_EQ(order.position(), (DataPosition{0, kMost - 1, kMost}));
  order.advance({kMost, kMost}, kMost);
  EXPECT_EQ(order.position(), (DataPosition{1, 0, 0}));
}

TEST(DataOrder, WhatMakesNoSenseIsRefused) {
  DataOrder order(1);
  EXPECT_THAT(
      [&] {
        order.indices({0, 4}, 0);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("set of 0")));
  EXPECT_THAT(
      [&] {
        order.check({-3, 4});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("set of -3")));
  EXPECT_THAT(
      [&] {
        order.advance({4, 0}, 1);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("0 samples per shard")));
  EXPECT_THAT(
      [&] {
        order.restore({-1, 0, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("epoch -1")));
  EXPECT_THAT(
      [&] {
        order.restore({0, 5, 5});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("5 of 5 samples taken")));
  EXPECT_THAT(
      [&] {
        order.restore({0, 5, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("5 of 0")));
  EXPECT_THAT(
      [&] {
        order.restore({0, -5, 9});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("-5 of 9")));
  EXPECT_EQ(order.position(), DataPosition{});
}

// promise: sample_order.h#SampleOrder
TEST(Permutation, DependsOnSeedAndEpoch) {
  EXPECT_EQ(permutation_of(100, 1, 0), permutation_of(100, 1, 0));
  EXPECT_NE(permutation_of(100, 1, 0), permutation_of(100, 1, 1));
  EXPECT_NE(permutation_of(100, 1, 0), permutation_of(100, 2, 0));
  EXPECT_NE(permutation_of(100, 0, 1), permutation_of(100, 1, 0));
}

// A run that is resumed with a later version must go on through the same samples.
TEST(Permutation, StaysTheSameFromVersionToVersion) {
  EXPECT_THAT(permutation_of(8, 1, 0), ElementsAre(3, 5, 2, 7, 0, 1, 4, 6));
  EXPECT_THAT(permutation_of(8, 1, 1), ElementsAre(7, 0, 5, 4, 1, 2, 3, 6));
}

TEST(Permutation, FavoursNone) {
  std::map<Indices, int> counts;
  for (std::int64_t epoch = 0; epoch < 24000; ++epoch) ++counts[permutation_of(4, 7, epoch)];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [permutation, count] : counts) EXPECT_NEAR(count, 1000, 150);  // 5 sigma
}

}  // namespace
}  // namespace tutti::test
