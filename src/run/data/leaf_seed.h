#pragma once

// Random numbers of a leaf (a shard, a micro-batch) depend on where it stands in the run alone.
//
// Pure function.

#include <cstdint>

#include "kernels/hash.h"

namespace tutti {

inline std::uint64_t leaf_seed(std::uint64_t seed, std::int64_t step, std::int64_t leaf) noexcept {
  const std::uint64_t words[] = {seed, static_cast<std::uint64_t>(step),
                                 static_cast<std::uint64_t>(leaf)};
  return digest(words, sizeof words);
}

}  // namespace tutti
