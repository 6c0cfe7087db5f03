#include "torch/classes/class_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tutti {
namespace {

/// The finalizer of MurmurHash3: every bit of the input reaches every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

/// Where a permutation of 0 … count − 1, one for each key, has i: four rounds of a Feistel network
/// over the next even number of bits, repeated until the value is in range (Black and Rogaway 2002,
/// "Ciphers with arbitrary finite domains", cycle walking).
std::int64_t permuted(std::int64_t i, std::int64_t count, std::uint64_t key) {
  const auto end = static_cast<std::uint64_t>(count);
  const int half_bits = std::max<int>(1, static_cast<int>(std::bit_width(end - 1) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (mix(key + (round << 40) + right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= end);
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::int64_t sampled_count(std::int64_t count, double rate, std::int64_t present) {
  const auto wanted = static_cast<std::int64_t>(std::ceil(rate * static_cast<double>(count)));
  return std::max(std::clamp<std::int64_t>(wanted, 1, count), present);
}

std::vector<std::int32_t> sample_classes(std::int64_t count, double rate,
                                         std::span<const std::int32_t> present, std::uint64_t key) {
  const auto size = static_cast<std::size_t>(
      sampled_count(count, rate, static_cast<std::int64_t>(present.size())));
  std::vector<std::int32_t> chosen(present.begin(), present.end());
  chosen.reserve(size);
  for (std::int64_t i = 0; chosen.size() < size; ++i) {
    const auto next = static_cast<std::int32_t>(permuted(i, count, key));
    if (!std::ranges::binary_search(present, next)) chosen.push_back(next);
  }
  std::ranges::sort(chosen);
  return chosen;
}

}  // namespace tutti
