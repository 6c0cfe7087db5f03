#pragma once

// Selection by magnitude: the k largest of a float32 array, or all from a threshold on. Results
// depend on the values alone, never on alignment, length, instruction set or how they were found.
// Magnitudes are compared as bits without their sign: +0 equals −0, denormals and infinities are
// ordinary, and nothing is rounded.
//
// Threads: pure functions; a SelectScratch belongs to one call at a time. Failure: std::bad_alloc
// where scratch cannot grow; arguments are checked by callers (TUTTI_CHECK on impossible values).

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti {

struct Selected {
  std::int64_t count = 0;       ///< entries selected, their indices ascending
  std::int64_t first_nan = -1;  ///< the lowest index of a NaN; then nothing else is valid
};

/// Memory that select_largest reuses, grown on demand: 32 KiB of counters, and for what a sweep
/// collects about 30 bytes per selected element at 1 %, 100 at 0.1 % of a million.
class SelectScratch {
 public:
  /// Times that the last selection read its input from end to end: 1 as a rule, 5 at most.
  int sweeps() const { return sweeps_; }

 private:
  friend class LargestSelection;
  static constexpr std::size_t kBins = 2048;

  /// Four histograms: equal values one after another do not wait for one another's counts.
  std::array<std::uint32_t, 4 * kBins> counts_;
  std::size_t room_ = 0;
  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  int sweeps_ = 0;
};

/// Exactly the k elements of largest magnitude of values[0, count), 1 ≤ k ≤ count < 2^32; of equal
/// magnitudes the lower index first. Writes k ascending indices, and the values bit for bit.
///
/// A sample of the values gives a magnitude that is probably a little below the k-th largest; one
/// sweep collects what reaches it, and the exact selection is among those. Where they are too few
/// or too many (k too large a share, values made to deceive), three sweeps of counting find the
/// k-th largest magnitude itself, and a last one collects.
Selected select_largest(const float* values, std::int64_t count, std::int64_t k,
                        std::uint32_t* indices, float* selected, SelectScratch& scratch);

/// All elements with |x| ≥ threshold (finite, ≥ 0), in one sweep. At most `capacity` are written,
/// the first ones; the returned count is of all.
Selected select_at_least(const float* values, std::int64_t count, float threshold,
                         std::uint32_t* indices, float* selected, std::int64_t capacity);

}  // namespace tutti
