#pragma once

// The exchange of a step's metrics: each worker writes the records of its shards as bytes that the
// others can read; from the records of all, in the order of the shards, each worker reduces the
// same values.
//
// Records travel unfolded: the tree is over shards, and folding takes microseconds.
//
// Threads: pure functions. Failure: InvalidArgument, as documented at each.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/metrics.h"

namespace tutti {

/// Name of the metric that a shard which returns a loss has recorded.
inline constexpr std::string_view kLossName = "loss";

/// The records of consecutive shards.
std::vector<std::byte> packed(std::span<const ShardMetrics> shards);
/// Writes them to the front of `area`; returns the bytes written.
/// InvalidArgument naming the bytes needed if they do not fit; nothing is written then.
std::size_t pack(std::span<const ShardMetrics> shards, std::span<std::byte> area);
/// Reads exactly the bytes that pack() has written. The bytes are trusted: sizes are checked by
/// TUTTI_CHECK.
std::vector<ShardMetrics> unpack(std::span<const std::byte> bytes);

/// What two workers, or two closures, have recorded of one shard. InvalidArgument for a name that
/// both have used.
ShardMetrics joined(const ShardMetrics& some, const ShardMetrics& more);

/// Folds the records of all shards of a step, those without any included: shards[s] is shard s.
/// InvalidArgument for a name that is used with two kinds: the same text for the same shards.
Metrics reduce(std::span<const ShardMetrics> shards);

}  // namespace tutti
