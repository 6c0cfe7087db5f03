// Who owns state per worker, and which nodes each has.

#include "sync/nodes/logical_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "sync/nodes/held_nodes.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

/// The nodes of the tree over [begin, end), as the recursion makes them.
void list_nodes(std::int64_t begin, std::int64_t end, std::vector<ShardRange>& all) {
  all.push_back({begin, end});
  if (end - begin == 1) return;
  const auto left =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin - 1)));
  list_nodes(begin, begin + left, all);
  list_nodes(begin + left, end, all);
}

TEST(LogicalWorkers, AreNodesOfTheTreeThatCoverIt) {
  for (std::int64_t shards = 1; shards <= 20; ++shards) {
    std::vector<ShardRange> nodes;
    list_nodes(0, shards, nodes);
    for (std::int64_t count = 1; count <= shards; ++count) {
      const auto logical = logical_workers(shards, count);
      ASSERT_EQ(static_cast<std::int64_t>(logical.size()), count);
      std::int64_t begin = 0;
      for (const auto& range : logical) {
        EXPECT_EQ(range.begin, begin);
        begin = range.end;
        EXPECT_TRUE(std::ranges::any_of(nodes,
                                        [&](const ShardRange& node) {
                                          return node.begin == range.begin && node.end == range.end;
                                        }))
            << range.begin << " to " << range.end << " of " << shards;
      }
      EXPECT_EQ(begin, shards);
    }
  }
  const auto text_of = [](std::int64_t shards, std::int64_t count) -> std::string {
    try {
      logical_workers(shards, count);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text_of(2, 3), HasSubstr("3 logical workers of 2 shards"));
  EXPECT_THAT(text_of(100, 33), HasSubstr("33 logical workers: must be 1 to 32"));
  EXPECT_THAT(text_of(4, 0), HasSubstr("0 logical workers: must be 1 to 32"));
}

TEST(LogicalWorkers, AreOnOneHostWhereAllWhoCarryThemAre) {
  const std::vector<ShardRange> logical = {{0, 2}, {2, 4}, {4, 8}};
  const auto of = [&](const std::vector<ShardRange>& carried, const std::vector<int>& hosts) {
    return on_one_host(logical, carried, hosts);
  };
  using Each = std::vector<bool>;
  EXPECT_EQ(of({{0, 2}, {2, 4}, {4, 8}}, {0, 1, 2}), (Each{true, true, true}));
  EXPECT_EQ(of({{0, 3}, {3, 8}}, {0, 1}), (Each{true, false, true}));
  EXPECT_EQ(of({{0, 1}, {1, 2}, {2, 7}, {7, 8}}, {0, 0, 1, 0}), (Each{true, true, false}));
  // A worker without a shard carries nothing.
  EXPECT_EQ(of({{0, 8}, {8, 8}, {3, 3}}, {0, 1, 1}), (Each{true, true, true}));
}

TEST(HeldNodes, FollowOneAnotherOverTheWorkersAndBelongToOneLogicalWorkerEach) {
  // Two workers: leaves 0 to 2 as nodes of 2 and 1, leaves 3 to 5 as nodes of 1 and 2.
  std::vector<StepHeader> headers(2);
  headers[0].leaves = headers[1].leaves = 3;
  headers[0].node_count = headers[1].node_count = 2;
  headers[0].nodes[0] = {{0, 2}, 3};
  headers[0].nodes[1] = {{2, 1}, 0.5};
  headers[1].nodes[0] = {{0, 1}, 1};
  headers[1].nodes[1] = {{1, 2}, 2};
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (int r = 0; r < 2; ++r) append_nodes(nodes, leaves, r, headers[static_cast<std::size_t>(r)]);
  EXPECT_EQ(leaves, 6);
  ASSERT_EQ(nodes.size(), 4u);
  EXPECT_EQ(nodes[2].block, (Block{3, 1}));
  EXPECT_EQ(nodes[3].block, (Block{4, 2}));
  EXPECT_EQ(nodes[3].worker, 1);
  EXPECT_EQ(nodes[3].row, 1);
  EXPECT_EQ(nodes[3].weight, 2);
  const std::vector<ShardRange> logical = {{0, 4}, {4, 6}};
  const auto mine = nodes_of(nodes, logical);
  EXPECT_EQ(mine[0].end, 3u);
  EXPECT_EQ(mine[1].begin, 3u);
  EXPECT_EQ(mine[1].end, 4u);
  const auto by_worker = nodes_of_workers(nodes, 2);
  EXPECT_EQ(by_worker[0].end, 2u);
  EXPECT_EQ(by_worker[1].begin, 2u);
}

TEST(HeldNodes, WeightsAreAddedAlongTheTree) {
  const std::vector<Block> blocks = {{0, 1}, {1, 1}, {2, 1}, {3, 1}};
  const std::vector<double> weights = {0.1, 0.1, 0.1, 0.4};
  ASSERT_NE((0.1 + 0.1) + (0.1 + 0.4), ((0.1 + 0.1) + 0.1) + 0.4);
  EXPECT_EQ(fold_weights(blocks, weights, 4), (0.1 + 0.1) + (0.1 + 0.4));
  EXPECT_EQ(fold_weights({}, {}, 4), 0);
}

}  // namespace
}  // namespace tutti::test
