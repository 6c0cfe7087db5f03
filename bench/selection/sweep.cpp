// Compiled for all that this machine has: a bound, not a rival.

#include "selection/sweep.h"

#include <bit>

std::uint32_t sweep(const float* values, std::size_t count) {
  std::uint32_t bits[64] = {};
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (std::size_t k = 0; k < 64; ++k) bits[k] |= std::bit_cast<std::uint32_t>(values[i + k]);
  }
  for (; i < count; ++i) bits[0] |= std::bit_cast<std::uint32_t>(values[i]);
  std::uint32_t all = 0;
  for (const auto lane : bits) all |= lane;
  return all;
}
