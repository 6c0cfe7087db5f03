#pragma once

// Sums of squares whose bits depend on the values alone: a parameter is cut into blocks of 4096
// elements, a block is summed in a fixed order, and blocks are folded along the canonical tree
// (fold_program.h). Any worker computes the same sums for a run of whole blocks.
//
// Threads: pure functions. Failure: none; arguments are checked by callers (TUTTI_CHECK on
// impossible combinations). NaN and infinity in the data show in the sums.

#include <cstdint>
#include <span>

#include "tutti/dtype.h"

namespace tutti {

/// Elements of a block; the last one of a parameter may be shorter.
inline constexpr std::int64_t kNormBlock = 4096;

/// blocks[b] = Σ x² over elements [4096·b, 4096·(b + 1)) of `data`, which begins at a multiple of
/// 4096 of its parameter: x and x² in float64, element i of a block added to accumulator i mod 16
/// in ascending order, the 16 folded along the canonical tree. Floats only. There is one element
/// of `blocks` per block.
void squares_of_blocks(const void* data, DType dtype, std::int64_t count, std::span<double> blocks);

/// The values added along the canonical tree: n split at the largest power of two below n. 0 for
/// none.
double tree_sum(std::span<const double> values);

}  // namespace tutti
