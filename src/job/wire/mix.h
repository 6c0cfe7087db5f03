#pragma once

// One number for several, which workers compare; nobody chooses them to collide.
//
// Threads: a pure function. Failure: none.

#include <bit>
#include <cstdint>

namespace tutti {

/// The hash of what `hash` is of, and `value`.
inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ std::rotr(hash, 29);
}

}  // namespace tutti
