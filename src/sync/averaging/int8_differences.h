#pragma once

// What an averaging policy that sends_int8() exchanges of a parameter: of each copy its difference
// from what all copies were, in blocks of 8-bit integers (kernels/int8_blocks.h), and the mean of
// these differences in such blocks again. Both ways what rounding takes away is kept, and added to
// what is sent next (error feedback; in both directions: DoubleSqueeze, Tang et al. 2019, arXiv
// 1905.05957, algorithm 1).
//
// All values are float32. Elements are those of a tile, or of whole tiles.
//
// Threads: one. Failure: none. Where a difference is not finite, its message is NaN, and so is the
// mean on all workers.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fold_program.h"

namespace tutti {

/// Writes int8_bytes(count) bytes of copy − before + residual. The residual becomes what they lack.
void write_difference(std::byte* message, const float* copy, const float* before, float* residual,
                      std::int64_t count);

/// `values`, a mean of differences, becomes before + what 8 bits hold of values + residual. The
/// residual becomes what they lack.
void add_difference(float* values, const float* before, float* residual, std::int64_t count);

class MeanOfMessages {
 public:
  explicit MeanOfMessages(std::size_t replicas);

  /// Writes the mean of elements [begin, begin + count) of the messages, one per replica, along the
  /// tree over the replicas. At most a tile.
  void take(std::span<const std::byte* const> messages, std::int64_t begin, std::int64_t count,
            float* to);

 private:
  FoldProgram tree_;
  std::vector<std::vector<float>> terms_;  ///< per replica
};

}  // namespace tutti
