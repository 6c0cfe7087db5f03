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

/// `count` is a multiple of a vector.
template <class Update, class T, class S>
void scale_body(T* to, const S* from, std::size_t count, Computed<S> weight) {
  const hn::ScalableTag<Computed<S>> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, weight);
  const bool scales = weight != Computed<S>{1};
  const auto at = [&](std::size_t i) HWY_ATTR {
    const auto v = load(d, from + i);
    return Update()(d, to + i, scales ? hn::Mul(v, by) : v);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = at(i);
    const auto v1 = at(i + lanes);
    const auto v2 = at(i + 2 * lanes);
    const auto v3 = at(i + 3 * lanes);
    store(v0, d, to + i);
    store(v1, d, to + i + lanes);
    store(v2, d, to + i + 2 * lanes);
    store(v3, d, to + i + 3 * lanes);
  }
  for (; i < count; i += lanes) store(at(i), d, to + i);
}

template <class Update, class T, class S>
void scale_typed(void* to_bytes, const void* from_bytes, std::size_t count, double weight_value) {
  auto* const to = static_cast<T*>(to_bytes);
  const auto* const from = static_cast<const S*>(from_bytes);
  const auto weight = static_cast<Computed<S>>(weight_value);
  const hn::ScalableTag<Computed<S>> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t rest = count % lanes;
  const std::size_t body = count - rest;
  scale_body<Update>(to, from, body, weight);
  if (rest == 0) return;
  T padded_to[hn::MaxLanes(d)] = {};
  S padded_from[hn::MaxLanes(d)] = {};
  std::memcpy(padded_to, to + body, rest * sizeof(T));
  std::memcpy(padded_from, from + body, rest * sizeof(S));
  scale_body<Update>(padded_to, padded_from, lanes, weight);
  std::memcpy(to + body, padded_to, rest * sizeof(T));
}

template <class Update>
void scale_on_target(void* to, DType to_type, const void* from, DType from_type, std::size_t count,
                     double weight) {
  const bool widens = to_type != from_type;
  switch (from_type) {
    case DType::float32:
      return scale_typed<Update, float, float>(to, from, count, weight);
    case DType::float64:
      return scale_typed<Update, double, double>(to, from, count, weight);
    case DType::float16:
      if (widens) return scale_typed<Update, float, Float16>(to, from, count, weight);
      return scale_typed<Update, Float16, Float16>(to, from, count, weight);
    case DType::bfloat16:
      if (widens) return scale_typed<Update, float, BFloat16>(to, from, count, weight);
      return scale_typed<Update, BFloat16, BFloat16>(to, from, count, weight);
    default:
      return;
  }
}

void scale_into_on_target(void* to, DType to_type, const void* from, DType from_type,
                          std::size_t count, double weight) {
  scale_on_target<Assign>(to, to_type, from, from_type, count, weight);
}

void add_scaled_on_target(void* to, DType to_type, const void* from, DType from_type,
                          std::size_t count, double weight) {
  scale_on_target<AddTo>(to, to_type, from, from_type, count, weight);
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
