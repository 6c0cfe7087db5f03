#pragma once

// Who owns state per worker: L nodes of the tree over a step's shards. L belongs to the run, so
// that what depends on such state does not depend on the number of workers.
//
// Pure functions. Failure: InvalidArgument.

#include <cstdint>
#include <span>
#include <vector>

#include "sync/nodes/held_nodes.h"
#include "sync/plan/assignment.h"

namespace tutti {

/// Most logical workers of a run.
inline constexpr std::int64_t kMaxLogicalWorkers = 32;

/// Splits the tree over `shards` leaves: always its largest node, leftmost first, until there are
/// `count` ≥ 1. InvalidArgument for more than there are shards, or than kMaxLogicalWorkers.
std::vector<ShardRange> logical_workers(std::int64_t shards, std::int64_t count);

/// For each logical worker, the workers that carry its leaves, ascending: `carried` are those of
/// each worker.
std::vector<std::vector<int>> carriers_of(std::span<const ShardRange> logical,
                                          std::span<const ShardRange> carried);
/// For each logical worker, whether all of them are on one host; `hosts` is where each worker is.
std::vector<bool> on_one_host(std::span<const ShardRange> logical,
                              std::span<const ShardRange> carried, std::span<const int> hosts);

/// The nodes of each, of a step's nodes; none reaches from one logical worker to another.
std::vector<NodeRange> nodes_of(std::span<const HeldNode> held,
                                std::span<const ShardRange> logical);
/// The same where every worker is a logical worker.
std::vector<NodeRange> nodes_of_workers(std::span<const HeldNode> held, std::size_t workers);

}  // namespace tutti
