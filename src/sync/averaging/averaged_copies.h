#pragma once

// Where the copies of parameters lie that are averaged: in memory that all logical workers of a
// Trainer share, or in the program's own model on each worker of an AveragedParallel. What an
// averaging policy keeps of a parameter lies beside them.
//
// Threads: one. Pointers hold until the next call. Failure: that of store().

#include <cstddef>
#include <cstdint>

#include "sync/plan/tile_share.h"
#include "tutti/dtype.h"

namespace tutti {

/// All values are of the parameter's node type.
class AveragedCopies {
 public:
  virtual ~AveragedCopies() = default;
  /// The mean of all copies of these elements, as it was sent. The caller may change it there, and
  /// asks once in a round: what sending it took away is then kept for the next one.
  virtual std::byte* mean(const ElementRange& tile) = 0;
  /// What all copies were when the parameter was last averaged. The caller writes what they become.
  virtual std::byte* before(const ElementRange& tile) = 0;
  /// The k-th tensor that the policy keeps.
  virtual std::byte* state(const ElementRange& tile, int k) = 0;
  /// Room for a mean that is not applied yet, where the policy overlaps.
  virtual std::byte* in_flight(const ElementRange& tile) = 0;
  /// Each copy becomes own · copy + (1 − own) · values, rounded once to the node type, and then to
  /// the parameter's own.
  virtual void mix(const ElementRange& tile, const std::byte* values, double own) = 0;
  /// All copies become these values, rounded once to the parameter's own type.
  virtual void store(const ElementRange& tile, const std::byte* values) = 0;
};

/// copy[i] ← own · copy[i] + (1 − own) · values[i], in float64, rounded once to `type`.
void mix_into(std::byte* copy, const std::byte* values, DType type, std::int64_t count, double own);

}  // namespace tutti
