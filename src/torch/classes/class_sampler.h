#pragma once

// Which classes of a piece take part in a step: those that samples have, and others at random.
//
// Random numbers are those of a counter, so that a choice depends on its key alone and costs what
// is chosen, not what there is to choose from.
//
// Threads: pure functions. Failure: none; arguments are checked by callers.

#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// How many of `count` classes take part of which samples have `present`, distinct.
std::int64_t sampled_count(std::int64_t count, double rate, std::int64_t present);

/// Ascending: `present`, which is ascending and distinct, and others of 0 … count − 1.
std::vector<std::int32_t> sample_classes(std::int64_t count, double rate,
                                         std::span<const std::int32_t> present, std::uint64_t key);

}  // namespace tutti
