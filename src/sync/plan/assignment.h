#pragma once

// Which shards of a step each worker computes, and how many nodes of the tree that leaves it with.
// Every worker comes to the same answer by itself, and no bit of a result depends on it
// (docs/numerics.md).
//
// Threads: pure functions. Failure: InvalidArgument for numbers that make no sense.

#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// Shards [begin, end) of a step.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// How much longer than necessary the slowest worker may take so that fewer nodes are exchanged.
inline constexpr double kSubtreeTolerance = 0.05;

/// Contiguous ranges in rank order that cover `shards` ≥ 1, one per speed (shards per unit of time,
/// positive and finite; only their ratios count). The slowest worker takes at most 1 + tolerance of
/// the least possible time; within that, the ranges are together as few nodes of the tree as
/// possible, then the slowest worker as quick as possible; of equals, rank 0 takes as many shards
/// as possible, and what is left is cut by the same rules. A range may be empty. A tolerance that
/// lets the workers together take more than 512 shards too many is cut to that, so that the search
/// takes milliseconds for thousands of shards.
std::vector<ShardRange> assign_shards(std::int64_t shards, std::span<const double> speeds,
                                      double tolerance = kSubtreeTolerance);
/// The same for workers of equal speed.
std::vector<ShardRange> assign_shards(std::int64_t shards, int workers,
                                      double tolerance = kSubtreeTolerance);

/// Nodes that a worker holds once it has folded its range: blocks_of_range(…).size().
int node_count(const ShardRange& range);
/// Most nodes that it holds on the way, the leaf in flight counted: its gradient memory, in models.
int nodes_in_flight(const ShardRange& range);
/// Most nodes_in_flight() of any range of at most `shards` ≥ 1 shards: 2·⌊log2 shards⌋ + 1.
int max_nodes(std::int64_t shards);

}  // namespace tutti
