#pragma once

// Float32 as 8-bit integers, in blocks that have a scale each. A block is its scale, float32, and
// one signed byte for each of its values:
//
//   scale = |the largest value| ÷ 127, its last 7 bits cleared, at least 2⁻¹²⁶
//   byte = value ÷ scale, rounded to nearest-even: in [−127, 127]
//   what it contains = byte · scale
//
// A scale has 17 significant bits and a byte 7, so that the product is exact, never beyond the
// largest finite value, and never subnormal; so is value − byte · scale. Every result depends on
// the values of its block alone, never on alignment, position or instruction set.
//
// Threads: pure functions on disjoint memory. Failure: none; arguments are checked by callers.

#include <cstddef>
#include <cstdint>

namespace tutti {

/// The last block of an array may be shorter. With blocks of 256 the scales are 1.6 % of the bytes.
inline constexpr std::int64_t kInt8Block = 256;
inline constexpr std::size_t kInt8BlockBytes = sizeof(float) + kInt8Block;

/// n + 4 · ⌈n ÷ 256⌉.
constexpr std::size_t int8_bytes(std::int64_t count) {
  const auto blocks = count / kInt8Block + (count % kInt8Block != 0);
  return static_cast<std::size_t>(count) + static_cast<std::size_t>(blocks) * sizeof(float);
}

/// Writes int8_bytes(count) bytes. Returns −1, or where some value is not finite the index of the
/// first one; what is written is then incomplete.
std::int64_t to_int8(std::byte* to, const float* from, std::int64_t count);

/// to[i] = what the array that begins at `from` contains of value begin + i.
void from_int8(float* to, const std::byte* from, std::int64_t begin, std::int64_t count);

/// values[i] −= what the array contains of value i.
void subtract_int8(float* values, const std::byte* from, std::int64_t count);

/// Each value becomes what to_int8() would write of it. A block with a value that is not finite
/// stays as it is.
void round_to_int8(float* values, std::int64_t count);

}  // namespace tutti
