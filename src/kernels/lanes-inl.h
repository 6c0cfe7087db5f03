// Loads and stores of every element type in the type it is computed in. Included once per target.

#if defined(TUTTI_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_LANES_INL_H_
#undef TUTTI_KERNELS_LANES_INL_H_
#else
#define TUTTI_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/elements.h"

// Highway's own conversions are used only where they are one exact instruction: elsewhere its
// float16 conversion and, everywhere, its bfloat16 conversion may truncate or flush.
#undef TUTTI_HAS_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define TUTTI_HAS_F16C 1
#else
#define TUTTI_HAS_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from) {
  static_assert(std::is_same_v<hn::TFromD<D>, T>);
  return hn::LoadU(d, from);
}

template <class D, class T>
HWY_INLINE void store(hn::Vec<D> v, D d, T* to) {
  static_assert(std::is_same_v<hn::TFromD<D>, T>);
  hn::StoreU(v, d, to);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> du16;
  const auto bits =
      hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

/// magnitude > limit, both below 2^31.
template <class DU>
HWY_INLINE hn::Mask<DU> above(DU du, hn::Vec<DU> magnitude, std::int32_t limit) {
  const hn::RebindToSigned<DU> di;
  return hn::RebindMask(du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, limit)));
}

/// Values below 2^16 in 32-bit lanes, as 16-bit lanes.
template <class DU>
HWY_INLINE void store_low_halves(hn::Vec<DU> bits, DU, std::uint16_t* to) {
  const hn::Rebind<std::uint16_t, DU> du16;
  const hn::RebindToSigned<DU> di;
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, bits)), du16, to);
}

template <class D>
HWY_INLINE void store(hn::Vec<D> v, D, BFloat16* to) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  store_low_halves(hn::IfThenElse(is_nan, quiet, rounded), du,
                   reinterpret_cast<std::uint16_t*>(to));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Float16* from) {
#if TUTTI_HAS_F16C
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> du16;
  const auto half =
      hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::And(half, hn::Set(du, 0x7FFFu));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du, (127u - 15u) << 23));
  // Subnormal: give the mantissa the exponent of 2^-14 and subtract the implicit one again.
  const auto implicit_one = hn::Set(du, 113u << 23);
  const auto subnormal = hn::BitCast(
      du, hn::Sub(hn::BitCast(d, hn::Or(shifted, implicit_one)), hn::BitCast(d, implicit_one)));
  const auto special = hn::Or(shifted, hn::Set(du, 0x7F800000u));
  const auto quiet = hn::Or(special, hn::Set(du, 0x00400000u));
  auto bits = hn::IfThenElse(above(du, magnitude, 0x03FF), normal, subnormal);
  bits = hn::IfThenElse(above(du, magnitude, 0x7BFF), special, bits);
  bits = hn::IfThenElse(above(du, magnitude, 0x7C00), quiet, bits);
  return hn::BitCast(d, hn::Or(bits, sign));
#endif
}

template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, Float16* to) {
#if TUTTI_HAS_F16C
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(to));
#else
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  // A mantissa that rounds up to the next exponent carries into it, up to infinity.
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
  const auto rebias = hn::Set(du, ((15u - 127u) << 23) + 0xFFFu);
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, rebias), odd));
  // Adding 0.5 makes the unit in the last place 2^-24, that of half's subnormals.
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  const auto infinity = hn::Set(du, 0x7C00u);
  const auto quiet =
      hn::Or(hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 0x3FFu)), hn::Set(du, 0x7E00u));
  auto result = hn::IfThenElse(above(du, magnitude, (113 << 23) - 1), normal, subnormal);
  result = hn::IfThenElse(above(du, magnitude, (143 << 23) - 1), infinity, result);
  result = hn::IfThenElse(above(du, magnitude, 0x7F800000), quiet, result);
  store_low_halves(hn::Or(result, sign), du, reinterpret_cast<std::uint16_t*>(to));
#endif
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
