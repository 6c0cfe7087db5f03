// Scaling, weighted addition and the search for a byte that is not zero. Included once per target.

#if defined(TUTTI_KERNELS_SCALE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_SCALE_INL_H_
#undef TUTTI_KERNELS_SCALE_INL_H_
#else
#define TUTTI_KERNELS_SCALE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/lanes-inl.h"
#include "kernels/magnitude-inl.h"
#include "tutti/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Assign {
  template <class D, class T, class V>
  HWY_INLINE V operator()(D, const T*, V scaled) const {
    return scaled;
  }
};

struct AddTo {
  template <class D, class T, class V>
  HWY_INLINE V operator()(D d, const T* to, V scaled) const {
    return hn::Add(load(d, to), scaled);
  }
};

/// `count` is a multiple of a vector. Returns the bits of the largest magnitude of weight · from
/// where it measures, else 0.
template <class Update, bool kMeasures, class T, class S>
BitsOf<Computed<S>> scale_body(T* to, const S* from, std::size_t count, Computed<S> weight) {
  const hn::ScalableTag<Computed<S>> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, weight);
  const bool scales = weight != Computed<S>{1};
  // One maximum per vector in flight: they do not wait for one another.
  auto m0 = hn::Zero(di);
  auto m1 = hn::Zero(di);
  auto m2 = hn::Zero(di);
  auto m3 = hn::Zero(di);
  const auto at = [&](std::size_t i, auto& largest) HWY_ATTR {
    const auto v = load(d, from + i);
    const auto scaled = scales ? hn::Mul(v, by) : v;
    if constexpr (kMeasures) {
      largest = hn::Max(largest, without_sign(di, hn::BitCast(di, scaled)));
    }
    return Update()(d, to + i, scaled);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = at(i, m0);
    const auto v1 = at(i + lanes, m1);
    const auto v2 = at(i + 2 * lanes, m2);
    const auto v3 = at(i + 3 * lanes, m3);
    store(v0, d, to + i);
    store(v1, d, to + i + lanes);
    store(v2, d, to + i + 2 * lanes);
    store(v3, d, to + i + 3 * lanes);
  }
  for (; i < count; i += lanes) store(at(i, m0), d, to + i);
  return kMeasures ? largest_lane(di, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))) : 0;
}

/// Returns the largest magnitude where it measures, else 0.
template <class Update, bool kMeasures, class T, class S>
double scale_typed(void* to_bytes, const void* from_bytes, std::size_t count, double weight_value) {
  auto* const to = static_cast<T*>(to_bytes);
  const auto* const from = static_cast<const S*>(from_bytes);
  const auto weight = static_cast<Computed<S>>(weight_value);
  const hn::ScalableTag<Computed<S>> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t rest = count % lanes;
  const std::size_t body = count - rest;
  auto bits = scale_body<Update, kMeasures>(to, from, body, weight);
  if (rest > 0) {
    T padded_to[hn::MaxLanes(d)] = {};
    S padded_from[hn::MaxLanes(d)] = {};
    std::memcpy(padded_to, to + body, rest * sizeof(T));
    std::memcpy(padded_from, from + body, rest * sizeof(S));
    bits = std::max(bits, scale_body<Update, kMeasures>(padded_to, padded_from, lanes, weight));
    std::memcpy(to + body, padded_to, rest * sizeof(T));
  }
  if constexpr (!kMeasures) return 0;
  const auto largest = value_of_bits<Computed<S>>(bits);
  if constexpr (!std::is_same_v<Update, Assign>) return largest;
  // Rounding is monotonic: the largest as written is the largest, as written.
  const hn::CappedTag<Computed<S>, 1> one;
  T written;
  store(hn::Set(one, largest), one, &written);
  return hn::GetLane(load(one, &written));
}

template <class Update, bool kMeasures>
double scale_by_type(void* to, DType to_type, const void* from, DType from_type, std::size_t count,
                     double weight) {
  const bool widens = to_type != from_type;
  switch (from_type) {
    case DType::float32:
      return scale_typed<Update, kMeasures, float, float>(to, from, count, weight);
    case DType::float64:
      return scale_typed<Update, kMeasures, double, double>(to, from, count, weight);
    case DType::float16:
      if (widens) return scale_typed<Update, kMeasures, float, Float16>(to, from, count, weight);
      return scale_typed<Update, kMeasures, Float16, Float16>(to, from, count, weight);
    case DType::bfloat16:
      if (widens) return scale_typed<Update, kMeasures, float, BFloat16>(to, from, count, weight);
      return scale_typed<Update, kMeasures, BFloat16, BFloat16>(to, from, count, weight);
    default:
      return 0;
  }
}

template <class Update>
void scale_on_target(void* to, DType to_type, const void* from, DType from_type, std::size_t count,
                     double weight, double* largest) {
  if (largest == nullptr) {
    scale_by_type<Update, false>(to, to_type, from, from_type, count, weight);
  } else {
    *largest = scale_by_type<Update, true>(to, to_type, from, from_type, count, weight);
  }
}

void scale_into_on_target(void* to, DType to_type, const void* from, DType from_type,
                          std::size_t count, double weight, double* largest) {
  scale_on_target<Assign>(to, to_type, from, from_type, count, weight, largest);
}

void add_scaled_on_target(void* to, DType to_type, const void* from, DType from_type,
                          std::size_t count, double weight, double* largest) {
  scale_on_target<AddTo>(to, to_type, from, from_type, count, weight, largest);
}

template <class T>
double largest_magnitude_typed(const void* data, std::size_t count) {
  return value_of_bits<T>(largest_bits(static_cast<const BitsOf<T>*>(data), count));
}

double largest_magnitude_on_target(const void* data, DType dtype, std::size_t count) {
  switch (dtype) {
    case DType::float32:
      return largest_magnitude_typed<float>(data, count);
    case DType::float64:
      return largest_magnitude_typed<double>(data, count);
    case DType::float16:
      return largest_magnitude_typed<Float16>(data, count);
    case DType::bfloat16:
      return largest_magnitude_typed<BFloat16>(data, count);
    default:
      return 0;
  }
}

bool all_zero_on_target(const std::uint8_t* data, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto low = hn::Or(hn::LoadU(d, data + i), hn::LoadU(d, data + i + lanes));
    const auto high =
        hn::Or(hn::LoadU(d, data + i + 2 * lanes), hn::LoadU(d, data + i + 3 * lanes));
    if (!hn::AllTrue(d, hn::Eq(hn::Or(low, high), hn::Zero(d)))) return false;
  }
  return std::all_of(data + i, data + bytes, [](std::uint8_t byte) { return byte == 0; });
}

const char* name_of_target() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
