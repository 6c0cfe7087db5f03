// Largest magnitudes. Included once per target.
//
// As an integer maximum of the bits without their sign, which orders NaN above infinity above every
// finite value; a maximum of floats would lose NaN on some targets.

#if defined(TUTTI_KERNELS_MAGNITUDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_MAGNITUDE_INL_H_
#undef TUTTI_KERNELS_MAGNITUDE_INL_H_
#else
#define TUTTI_KERNELS_MAGNITUDE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The signed integer as wide as T.
template <class T>
using BitsOf = hwy::SignedFromSize<sizeof(T)>;

template <class D, class V = hn::Vec<D>>
HWY_INLINE V without_sign(D d, V bits) {
  return hn::And(bits, hn::Set(d, std::numeric_limits<hn::TFromD<D>>::max()));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::TFromD<D> largest_lane(D d, V values) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(values, d, lanes);
  return *std::max_element(lanes, lanes + hn::Lanes(d));
}

/// The T that has these bits, in the type it is computed in.
template <class T>
Computed<T> value_of_bits(BitsOf<T> bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return hn::GetLane(load(hn::CappedTag<Computed<T>, 1>(), &value));
}

template <class Bits>
Bits largest_bits(const Bits* data, std::size_t count) {
  const hn::ScalableTag<Bits> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [&](const Bits* from) HWY_ATTR { return without_sign(d, hn::LoadU(d, from)); };
  auto largest = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto low = hn::Max(at(data + i), at(data + i + lanes));
    const auto high = hn::Max(at(data + i + 2 * lanes), at(data + i + 3 * lanes));
    largest = hn::Max(largest, hn::Max(low, high));
  }
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, at(data + i));
  if (i < count) {
    Bits padded[hn::MaxLanes(d)] = {};
    std::memcpy(padded, data + i, (count - i) * sizeof(Bits));
    largest = hn::Max(largest, at(padded));
  }
  return largest_lane(d, largest);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
