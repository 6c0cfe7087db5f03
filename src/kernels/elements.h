#pragma once

// Element types of memory, and the type each is computed in.

#include <cstdint>
#include <type_traits>

namespace tutti {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

template <class T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <class T>
using Computed = std::conditional_t<is_16_bit_float<T>, float, T>;

}  // namespace tutti
