#pragma once

// What one pass of a selection is asked for and answers. Magnitudes are the bits of a float32
// without its sign, which order as the magnitudes do, NaN above infinity.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace tutti {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000;
inline constexpr std::uint32_t kMagnitudeBits = 0x7FFFFFFF;

/// Elements of magnitude ≥ `least`, in order.
struct Collect {
  const float* values = nullptr;
  const std::uint32_t* names = nullptr;  ///< of the values; nullptr: element i is called i
  std::size_t count = 0;
  std::uint32_t least = 0;  ///< at most kInfinityBits, so that every NaN is seen
  /// At most this many elements of magnitude `least` itself are collected, the first ones.
  std::uint64_t ties = std::numeric_limits<std::uint64_t>::max();
  std::uint32_t* to_indices = nullptr;
  float* to_values = nullptr;
  std::size_t capacity = 0;  ///< written at most; what follows is counted
};

struct Collected {
  std::size_t count = 0;
  std::int64_t first_nan = -1;  ///< then `count` is not valid
};

/// A digit of the magnitudes that begin with the bits of `prefix` above bit `top`:
/// bits [bottom, top), at most 11 of them.
struct CountDigit {
  const float* values = nullptr;
  std::size_t count = 0;
  std::uint32_t prefix = 0;
  int top = 31;
  int bottom = 20;
  /// counts[4][bins]: each element raises the counter of its digit in one of the four.
  std::uint32_t* counts = nullptr;
  std::size_t bins = 0;
};

}  // namespace tutti
