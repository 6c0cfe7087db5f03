#include "sync/plan/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "sync/nodes/logical_workers.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;

Buckets fused(const std::vector<std::int64_t>& counts, std::int64_t limit) {
  std::vector<std::uint32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0U);
  return fuse(order, counts, limit, limit);
}

// promise: codec.h#fusion
TEST(Fusion, AroundItsLimit) {
  EXPECT_THAT(fused({9, 9}, 10), ElementsAre(ElementsAre(0, 1)));  // 2·(T − 1) > T
  EXPECT_THAT(fused({10, 1, 1}, 10), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));  // T, T + 1
  EXPECT_THAT(fused({11, 10}, 10), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(fused({10, 10}, 10), ElementsAre(ElementsAre(0, 1)));  // 2·T in one
  EXPECT_THAT(fused({20, 3, 20, 3}, 10),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1, 3)));  // large ones alone
  EXPECT_THAT(fused({1, 1, 1}, 1), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(fused({5, 0, 7}, 1000), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_TRUE(fused({}, 10).empty());
}

// promise: codec.h#fusion
TEST(Fusion, EveryParameterIsInOneBucketOfAtMostTwiceTheLimit) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> counts(random() % 40);
    for (auto& count : counts) count = static_cast<std::int64_t>(random() % 100);
    const auto limit = static_cast<std::int64_t>(1 + random() % 150);
    std::vector<int> seen(counts.size());
    const auto buckets = fused(counts, limit);
    for (std::size_t g = 0; g < buckets.size(); ++g) {
      std::int64_t sum = 0;
      for (const auto p : buckets[g]) {
        ++seen[p];
        sum += counts[p];
      }
      EXPECT_TRUE(buckets[g].size() == 1 || sum <= 2 * limit);
      EXPECT_TRUE(g + 1 == buckets.size() || sum > limit);
      EXPECT_TRUE(std::is_sorted(buckets[g].begin(), buckets[g].end()));
    }
    EXPECT_EQ(seen, std::vector<int>(counts.size(), 1));
  }
}

TEST(LogicalWorkers, AreNodesOfTheTree) {
  EXPECT_THAT(logical_workers(8, 1), ElementsAre(ShardRange{0, 8}));
  EXPECT_THAT(logical_workers(8, 3),
              ElementsAre(ShardRange{0, 2}, ShardRange{2, 4}, ShardRange{4, 8}));
  EXPECT_THAT(logical_workers(8, 5),
              ElementsAre(ShardRange{0, 1}, ShardRange{1, 2}, ShardRange{2, 4}, ShardRange{4, 6},
                          ShardRange{6, 8}));
  EXPECT_THAT(logical_workers(7, 3),
              ElementsAre(ShardRange{0, 2}, ShardRange{2, 4}, ShardRange{4, 7}));
  EXPECT_THAT(logical_workers(5, 2), ElementsAre(ShardRange{0, 4}, ShardRange{4, 5}));
  EXPECT_EQ(logical_workers(5, 5).size(), 5u);
  EXPECT_THROW(logical_workers(5, 6), InvalidArgument);
  EXPECT_THROW(logical_workers(5, 0), InvalidArgument);
  EXPECT_THROW(logical_workers(100, kMaxLogicalWorkers + 1), InvalidArgument);
}

}  // namespace
}  // namespace tutti::test
