// Blocks of 8-bit integers. Included once per target.

#if defined(TUTTI_KERNELS_INT8_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_INT8_BLOCKS_INL_H_
#undef TUTTI_KERNELS_INT8_BLOCKS_INL_H_
#else
#define TUTTI_KERNELS_INT8_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/int8_blocks.h"
#include "kernels/lanes-inl.h"
#include "kernels/magnitude-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr auto kBlockValues = static_cast<std::size_t>(kInt8Block);

/// 0 where a value is not finite.
HWY_INLINE float scale_of_block(const float* block) {
  constexpr std::int32_t kInfinity = 0x7F800000;
  constexpr std::int32_t kLeast = 0x00800000;
  constexpr std::int32_t kLastBits = 0x7F;
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  auto lanes = hn::Zero(di);
  for (std::size_t i = 0; i < kBlockValues; i += hn::Lanes(d)) {
    lanes = hn::Max(lanes, without_sign(di, hn::BitCast(di, load(d, block + i))));
  }
  const auto largest = largest_lane(di, lanes);
  if (largest >= kInfinity) return 0;
  const auto bits = std::bit_cast<std::int32_t>(std::bit_cast<float>(largest) / 127.0F);
  return std::bit_cast<float>(std::max(bits & ~kLastBits, kLeast));
}

template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> integers_of(D d, const float* values, hn::Vec<D> scale) {
  return hn::NearestInt(hn::Div(load(d, values), scale));
}

/// A whole block. Returns whether all of its values are finite.
HWY_INLINE bool write_block(std::byte* to, const float* block) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const float scale = scale_of_block(block);
  if (scale == 0) return false;
  std::memcpy(to, &scale, sizeof scale);
  auto* const bytes = reinterpret_cast<std::int8_t*>(to + sizeof scale);
  const auto by = hn::Set(d, scale);
  for (std::size_t i = 0; i < kBlockValues; i += hn::Lanes(d)) {
    hn::StoreU(hn::DemoteTo(d8, integers_of(d, block + i, by)), d8, bytes + i);
  }
  return true;
}

/// A whole block.
HWY_INLINE void round_block(float* block) {
  const hn::ScalableTag<float> d;
  const float scale = scale_of_block(block);
  if (scale == 0) return;
  const auto by = hn::Set(d, scale);
  for (std::size_t i = 0; i < kBlockValues; i += hn::Lanes(d)) {
    store(hn::Mul(hn::ConvertTo(d, integers_of(d, block + i, by)), by), d, block + i);
  }
}

struct TakeContained {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D, const float*, V contained) const {
    return contained;
  }
};

struct SubtractContained {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, const float* to, V contained) const {
    return hn::Sub(load(d, to), contained);
  }
};

/// `count` is a multiple of a vector.
template <class Update>
HWY_INLINE void read_vectors(float* to, const std::int8_t* from, std::size_t count, float scale) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto by = hn::Set(d, scale);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto integers = hn::PromoteTo(di, hn::LoadU(d8, from + i));
    store(Update()(d, to + i, hn::Mul(hn::ConvertTo(d, integers), by)), d, to + i);
  }
}

/// Values of one block.
template <class Update>
HWY_INLINE void read_piece(float* to, const std::int8_t* from, std::size_t count, float scale) {
  const hn::ScalableTag<float> d;
  const std::size_t rest = count % hn::Lanes(d);
  const std::size_t body = count - rest;
  read_vectors<Update>(to, from, body, scale);
  if (rest == 0) return;
  float padded[hn::MaxLanes(d)] = {};
  std::int8_t bytes[hn::MaxLanes(d)] = {};
  std::memcpy(padded, to + body, rest * sizeof(float));
  std::memcpy(bytes, from + body, rest);
  read_vectors<Update>(padded, bytes, hn::Lanes(d), scale);
  std::memcpy(to + body, padded, rest * sizeof(float));
}

template <class Update>
HWY_INLINE void read_blocks(float* to, const std::byte* from, std::size_t begin,
                            std::size_t count) {
  while (count > 0) {
    const auto* const block = from + begin / kBlockValues * kInt8BlockBytes;
    const std::size_t first = begin % kBlockValues;
    const std::size_t n = std::min(count, kBlockValues - first);
    float scale = 0;
    std::memcpy(&scale, block, sizeof scale);
    const auto* const bytes = reinterpret_cast<const std::int8_t*>(block + sizeof scale);
    read_piece<Update>(to, bytes + first, n, scale);
    to += n;
    begin += n;
    count -= n;
  }
}

/// Returns the number of values before the first block that has one that is not finite.
std::size_t to_int8_on_target(std::byte* to, const float* from, std::size_t count) {
  std::size_t begin = 0;
  for (; begin + kBlockValues <= count; begin += kBlockValues, to += kInt8BlockBytes) {
    if (!write_block(to, from + begin)) return begin;
  }
  const std::size_t rest = count - begin;
  if (rest == 0) return count;
  // Zeros in place of what is missing leave the scale alone.
  HWY_ALIGN float padded[kBlockValues] = {};
  HWY_ALIGN std::byte written[kInt8BlockBytes];
  std::memcpy(padded, from + begin, rest * sizeof(float));
  if (!write_block(written, padded)) return begin;
  std::memcpy(to, written, sizeof(float) + rest);
  return count;
}

void from_int8_on_target(float* to, const std::byte* from, std::size_t begin, std::size_t count) {
  read_blocks<TakeContained>(to, from, begin, count);
}

void subtract_int8_on_target(float* values, const std::byte* from, std::size_t count) {
  read_blocks<SubtractContained>(values, from, 0, count);
}

void round_to_int8_on_target(float* values, std::size_t count) {
  std::size_t begin = 0;
  for (; begin + kBlockValues <= count; begin += kBlockValues) round_block(values + begin);
  const std::size_t rest = count - begin;
  if (rest == 0) return;
  HWY_ALIGN float padded[kBlockValues] = {};
  std::memcpy(padded, values + begin, rest * sizeof(float));
  round_block(padded);
  std::memcpy(values + begin, padded, rest * sizeof(float));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
