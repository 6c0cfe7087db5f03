#pragma once

// What the kernels have to compute, one element at a time and by other means than theirs: half and
// bfloat16 by arithmetic in double, trees by recursion.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "tutti/dtype.h"

namespace tutti::model {

/// A binary float of 16 bits: `Fraction` explicit bits, the rest exponent and sign.
template <int Fraction>
struct Small {
  static constexpr int kExponentBits = 15 - Fraction;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr unsigned kInfinity = ((1u << kExponentBits) - 1) << Fraction;
  std::uint16_t bits = 0;
};
using Half = Small<10>;
using BFloat = Small<7>;

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<BFloat> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::uint8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};

template <class T>
T widen(T x) {
  return x;
}

template <int F>
float widen(Small<F> x) {
  using S = Small<F>;
  const bool negative = x.bits >> 15;
  const unsigned exponent = (x.bits & 0x7FFFu) >> F;
  const unsigned fraction = x.bits & ((1u << F) - 1);
  if ((x.bits & 0x7FFFu) >= S::kInfinity) {
    if (fraction == 0) return negative ? -INFINITY : INFINITY;
    const std::uint32_t nan = 0x7F800000u | (fraction << (23 - F)) | (negative ? 1u << 31 : 0u);
    return std::bit_cast<float>(nan);
  }
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - S::kBias - F)
                    : std::ldexp((1u << F) + fraction, static_cast<int>(exponent) - S::kBias - F);
  return static_cast<float>(negative ? -magnitude : magnitude);
}

/// To nearest, ties to even; a NaN keeps its sign and the top of its payload and becomes quiet.
template <int F>
Small<F> rounded(float x) {
  using S = Small<F>;
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000u : 0u);
  if (std::isnan(x)) {
    const unsigned payload = (std::bit_cast<std::uint32_t>(x) & 0x7FFFFFu) >> (23 - F);
    return {static_cast<std::uint16_t>(sign | S::kInfinity | (1u << (F - 1)) | payload)};
  }
  if (std::isinf(x)) return {static_cast<std::uint16_t>(sign | S::kInfinity)};
  const double magnitude = std::fabs(static_cast<double>(x));
  const int exponent =
      magnitude == 0 ? 1 - S::kBias : std::max(std::ilogb(magnitude), 1 - S::kBias);
  // Units of the last place; counting them gives the bits, a carry into the exponent included.
  const double units = std::nearbyint(std::ldexp(magnitude, F - exponent));
  const double bits = units + std::ldexp(exponent - (1 - S::kBias), F);
  return {static_cast<std::uint16_t>(
      sign | std::min<unsigned>(static_cast<unsigned>(bits), S::kInfinity))};
}

template <class R, class C>
R narrow(C x) {
  if constexpr (std::is_same_v<R, Half>) {
    return rounded<10>(x);
  } else if constexpr (std::is_same_v<R, BFloat>) {
    return rounded<7>(x);
  } else {
    return static_cast<R>(x);
  }
}

template <class C>
C combine(Reduction reduction, C a, C b) {
  switch (reduction) {
    case Reduction::logical_and:
      return a && b;
    case Reduction::logical_or:
      return a || b;
    default:
      break;
  }
  if constexpr (!std::is_same_v<C, bool>) {
    if (reduction == Reduction::max || reduction == Reduction::min) {
      if (a != a) return a;
      if (b != b) return b;
      return (reduction == Reduction::max ? a > b : a < b) ? a : b;
    }
    const bool adds = reduction != Reduction::product;
    if constexpr (std::is_integral_v<C>) {
      const auto x = static_cast<std::uint64_t>(a);
      const auto y = static_cast<std::uint64_t>(b);
      return static_cast<C>(adds ? x + y : x * y);
    } else {
      return adds ? a + b : a * b;
    }
  }
  return a;
}

/// at(k) for leaf k of [begin, begin + leaves), folded along the canonical tree.
template <class At>
auto tree(Reduction reduction, int begin, int leaves, const At& at) {
  if (leaves == 1) return at(begin);
  int left = 1;
  while (2 * left < leaves) left *= 2;
  const auto a = tree(reduction, begin, left, at);
  return combine(reduction, a, tree(reduction, begin + left, leaves - left, at));
}

/// Equal bits, or NaN both: which NaN comes out of two is the processor's business.
template <class T>
bool same(T a, T b) {
  if (std::memcmp(&a, &b, sizeof(T)) == 0) return true;
  if constexpr (!std::is_integral_v<T>) return std::isnan(widen(a)) && std::isnan(widen(b));
  return false;
}

/// Values of very different size, so that every other order of addition shows in the bits.
template <class T>
T random_value(std::mt19937_64& random) {
  if constexpr (std::is_same_v<T, bool>) {
    return random() % 2;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    const double size = std::ldexp(1.0, static_cast<int>(random() % 12) - 6);
    return narrow<T>(
        static_cast<decltype(widen(T{}))>(std::normal_distribution<>()(random) * size));
  }
}

template <class T>
std::vector<T> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (auto&& value : values) value = random_value<T>(random);
  return values;
}

}  // namespace tutti::model
