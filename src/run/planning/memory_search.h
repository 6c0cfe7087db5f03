#pragma once

// The search for a memory plan.
//
// From the first layer on, a plan is extended by one layer that runs plainly, or by several that
// run again. What it costs from there on depends on the bytes that it keeps, on its time so far,
// and on whether the last layer ran plainly; of those that agree in the last, only such are
// followed as no other one surpasses in both numbers.
//
//   peak = max over segments ( kept by those before │ while the segment computes )
//
// since in backward what lies behind a segment is gone. A segment that runs again holds all that it
// keeps plainly while it does, its result and that one's gradient, and the gradients of its
// parameters, which it gives all at once. The last result is the program's, which has it to the
// end.
//
// Threads: any. Failure: none.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/memory_plan.h"

namespace tutti {

/// InvalidArgument outside of [0, 1].
void require_share(double share);

struct SegmentCost {
  std::uint64_t input = 0;  ///< its input, as far as it is kept for this segment or the one before
  std::uint64_t kept = 0;   ///< until its backward, besides
  std::uint64_t peak = 0;   ///< while it computes, with its inside, beyond what is kept before
};

/// `segment`: one layer, or several that run again. `before_is_plain`: so is the layer before it.
SegmentCost cost_of(std::span<const LayerMemory> layers, const MemorySegment& segment,
                    bool before_is_plain);

class MemorySearch {
 public:
  /// Keeps a reference.
  explicit MemorySearch(std::span<const LayerMemory> layers);
  std::span<const LayerMemory> layers() const { return layers_; }
  /// Plain layers in a row are one segment. Absent: no plan has so low a peak.
  std::optional<std::vector<MemorySegment>> best(std::uint64_t budget) const;
  std::uint64_t plain_peak() const;
  std::uint64_t least_peak() const;

 private:
  struct Cost {
    SegmentCost after[2];  ///< after a layer that runs again, after a plain one
    double added_ms = 0;
  };
  const Cost& cost(std::size_t first, std::size_t last) const {
    return again_[first][last - first - 1];
  }

  std::span<const LayerMemory> layers_;
  std::vector<Cost> plain_;               ///< by layer
  std::vector<std::vector<Cost>> again_;  ///< by first layer, then by size
};

}  // namespace tutti
