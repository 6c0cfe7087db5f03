#pragma once

// Copying to and from memory that another worker just used.

#include <cstddef>
#include <cstring>

namespace tutti {

/// memcpy in plain loads and stores. The string instruction that libc prefers for more than some 2
/// KiB takes up to twice as long where the lines lie in another core's cache (docs/group.md).
inline void copy_shared(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kLibcIsPlain = 2048;
  if (bytes <= kLibcIsPlain) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  using Lane [[gnu::vector_size(16)]] = unsigned char;
  constexpr std::size_t kLanes = 4;
  constexpr std::size_t kStride = kLanes * sizeof(Lane);
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  for (; bytes >= kStride; bytes -= kStride, in += kStride, out += kStride) {
    Lane lanes[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      std::memcpy(&lanes[i], in + i * sizeof(Lane), sizeof(Lane));
    }
    // Keeps the compiler from seeing one large memcpy in this loop.
    asm volatile("" : : : "memory");
    for (std::size_t i = 0; i < kLanes; ++i) {
      std::memcpy(out + i * sizeof(Lane), &lanes[i], sizeof(Lane));
    }
  }
  if (bytes != 0) std::memcpy(out, in, bytes);
}

}  // namespace tutti
