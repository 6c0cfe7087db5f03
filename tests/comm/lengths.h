#pragma once

// Lengths in numbers of float32 at which what is exchanged is cut into chunks.

#include <cstdint>

#include "comm/local/control_arena.h"

namespace tutti::test {

/// One whole chunk.
inline constexpr std::int64_t kChunk = kChunkBytes / sizeof(float);
/// A chunk and a rest that no vector divides.
inline constexpr std::int64_t kLarge = kChunk + 33;

}  // namespace tutti::test
