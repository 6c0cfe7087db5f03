#pragma once

// Who owns state per worker: L nodes of the tree over a step's shards. L belongs to the run, so
// that what depends on such state does not depend on the number of workers.
//
// Pure functions. Failure: BadInput.

#include <cstdint>
#include <vector>

#include "sync/assignment.h"

namespace tutti {

/// Most logical workers of a run.
inline constexpr std::int64_t kMostLogicalWorkers = 32;

/// From the root of the tree over `shards` leaves on, the largest node is split, leftmost first,
/// until there are `count` ≥ 1. BadInput for more than there are shards, or than
/// kMostLogicalWorkers.
std::vector<ShardRange> logical_workers(std::int64_t shards, std::int64_t count);

}  // namespace tutti
