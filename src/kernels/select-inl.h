// The two passes of a selection: elements from a magnitude on, and a histogram of a digit. Included
// once per target.

#if defined(TUTTI_KERNELS_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_SELECT_INL_H_
#undef TUTTI_KERNELS_SELECT_INL_H_
#else
#define TUTTI_KERNELS_SELECT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/select_passes.h"

// Highway's Compress where it is an instruction; elsewhere its table lies in the function, and GCC
// copies it to the stack at every call.
#undef TUTTI_HAS_COMPRESS
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
#define TUTTI_HAS_COMPRESS 1
#else
#define TUTTI_HAS_COMPRESS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kChunk = 2048;

/// The selected elements of a chunk. Whole vectors are stored, so there is room for one behind the
/// last element.
struct Staged {
  static constexpr std::size_t kRoom = kChunk + hn::MaxLanes(hn::ScalableTag<float>());
  HWY_ALIGN float values[kRoom];
  HWY_ALIGN std::uint32_t names[kRoom];
};

/// The name of an element: none, its index, or the name that it was given before.
enum class Names { none, index, given };

#if !TUTTI_HAS_COMPRESS
/// Row m: the bits set in m, ascending.
inline constexpr auto kLanesOfBits = [] {
  std::array<std::array<std::uint8_t, 8>, 256> rows{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    for (unsigned lane = 0, next = 0; lane < 8; ++lane) {
      if ((bits >> lane & 1) != 0) rows[bits][next++] = static_cast<std::uint8_t>(lane);
    }
  }
  return rows;
}();
#endif

/// Stores the taken lanes, moved together, and returns how many they are; what follows them is of
/// no meaning. In registers: a compressing store is microcode on some processors, Zen 4 among them.
template <Names kNames, class D, class DU = hn::RebindToUnsigned<D>,
          class DI = hn::RebindToSigned<D>>
HWY_INLINE std::size_t store_taken(D d, hn::Vec<D> value, hn::Vec<DU> name, hn::Mask<DI> taken,
                                   float* to_values, std::uint32_t* to_names) {
  const DU du;
#if TUTTI_HAS_COMPRESS
  hn::StoreU(hn::Compress(value, hn::RebindMask(d, taken)), d, to_values);
  if constexpr (kNames != Names::none) {
    hn::StoreU(hn::Compress(name, hn::RebindMask(du, taken)), du, to_names);
  }
  return hn::CountTrue(DI(), taken);
#else
  static_assert(hn::MaxLanes(d) <= 8);
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(DI(), taken, bits);
  const hn::Rebind<std::uint8_t, D> du8;
  const auto lanes = hn::PromoteTo(du, hn::LoadU(du8, kLanesOfBits[bits[0]].data()));
  hn::StoreU(hn::TableLookupLanes(value, hn::IndicesFromVec(d, lanes)), d, to_values);
  if constexpr (kNames != Names::none) {
    hn::StoreU(hn::TableLookupLanes(name, hn::IndicesFromVec(du, lanes)), du, to_names);
  }
  return static_cast<std::size_t>(std::popcount(bits[0]));
#endif
}

/// Moves the elements of a chunk for which `is_taken` holds together; returns their number. A block
/// of vectors without any is skipped; within a block no branch depends on the data.
template <Names kNames, class IsTaken>
HWY_INLINE std::size_t stage(const float* values, const std::uint32_t* names, std::size_t first,
                             std::size_t count, const IsTaken& is_taken, Staged& to) {
  // Few enough to be skipped often, enough for the branch to be foreseen at one taken in a hundred.
  constexpr std::size_t kBlock = 8;
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto start = hn::Add(hn::Iota(du, 0), hn::Set(du, static_cast<std::uint32_t>(first)));
  std::size_t staged = 0;
  const auto taken_at = [&](std::size_t i) HWY_ATTR {
    return is_taken(hn::BitCast(di, hn::LoadU(d, values + i)));
  };
  const auto put = [&](auto value, auto name, auto taken) HWY_ATTR {
    staged += store_taken<kNames>(d, value, name, taken, to.values + staged, to.names + staged);
  };
  const auto put_at = [&](std::size_t i) HWY_ATTR {
    auto name = hn::Add(start, hn::Set(du, static_cast<std::uint32_t>(i)));
    if constexpr (kNames == Names::given) name = hn::LoadU(du, names + i);
    put(hn::LoadU(d, values + i), name, taken_at(i));
  };
  std::size_t i = 0;
  for (; i + kBlock * lanes <= count; i += kBlock * lanes) {
    auto any = taken_at(i);
    for (std::size_t v = 1; v < kBlock; ++v) any = hn::Or(any, taken_at(i + v * lanes));
    if (hn::AllFalse(di, any)) continue;
    for (std::size_t v = 0; v < kBlock; ++v) put_at(i + v * lanes);
  }
  for (; i + lanes <= count; i += lanes) put_at(i);
  if (i < count) {
    HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
    std::memcpy(padded, values + i, (count - i) * sizeof(float));
    auto name = hn::Add(start, hn::Set(du, static_cast<std::uint32_t>(i)));
    if constexpr (kNames == Names::given) {
      HWY_ALIGN std::uint32_t padded_names[hn::MaxLanes(d)] = {};
      std::memcpy(padded_names, names + i, (count - i) * sizeof(std::uint32_t));
      name = hn::Load(du, padded_names);
    }
    const auto value = hn::Load(d, padded);
    put(value, name, hn::And(is_taken(hn::BitCast(di, value)), hn::FirstN(di, count - i)));
  }
  return staged;
}

HWY_INLINE std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & kMagnitudeBits;
}

/// Drops all but the first `ties` of the staged elements of magnitude `least`.
inline std::size_t drop_ties(Staged& staged, std::size_t count, std::uint32_t least,
                             std::uint64_t ties) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool ties_with_least = magnitude_of(staged.values[i]) == least;
    staged.values[kept] = staged.values[i];
    staged.names[kept] = staged.names[i];
    kept += !ties_with_least || ties > 0;
    ties -= ties_with_least && ties > 0;
  }
  return kept;
}

template <Names kNames>
Collected collect_named(Collect work) {
  const hn::RebindToSigned<hn::ScalableTag<float>> di;
  const auto magnitude_bits = hn::Set(di, static_cast<std::int32_t>(kMagnitudeBits));
  Collected result;
  Staged staged;
  for (std::size_t begin = 0; begin < work.count; begin += kChunk) {
    const auto below = hn::Set(di, static_cast<std::int32_t>(work.least) - 1);
    const auto is_taken = [&](auto bits)
                              HWY_ATTR { return hn::Gt(hn::And(bits, magnitude_bits), below); };
    const std::uint32_t* const names = kNames == Names::given ? work.names + begin : nullptr;
    std::size_t n = stage<kNames>(work.values + begin, names, begin,
                                  std::min(kChunk, work.count - begin), is_taken, staged);
    std::uint32_t largest = 0;
    std::uint32_t ties = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t magnitude = magnitude_of(staged.values[i]);
      largest = std::max(largest, magnitude);
      ties += magnitude == work.least;
    }
    if (largest > kInfinityBits) {
      const auto* const nan = std::find_if(staged.values, staged.values + n, [](float value) {
        return magnitude_of(value) > kInfinityBits;
      });
      return {.first_nan = staged.names[nan - staged.values]};
    }
    if (ties > work.ties) n = drop_ties(staged, n, work.least, work.ties);
    work.ties -= std::min<std::uint64_t>(ties, work.ties);
    // From here on ties are treated as smaller elements.
    if (work.ties == 0) {
      ++work.least;
      work.ties = std::numeric_limits<std::uint64_t>::max();
    }
    if (result.count < work.capacity) {
      const std::size_t written = std::min(n, work.capacity - result.count);
      std::memcpy(work.to_indices + result.count, staged.names, written * sizeof(std::uint32_t));
      std::memcpy(work.to_values + result.count, staged.values, written * sizeof(float));
    }
    result.count += n;
  }
  return result;
}

Collected collect_on_target(const Collect& work) {
  return work.names == nullptr ? collect_named<Names::index>(work)
                               : collect_named<Names::given>(work);
}

void count_digit_on_target(const CountDigit& work) {
  const hn::RebindToSigned<hn::ScalableTag<float>> di;
  const std::uint32_t above = kMagnitudeBits >> work.top << work.top;
  const auto prefix_bits = hn::Set(di, static_cast<std::int32_t>(above));
  const auto prefix = hn::Set(di, static_cast<std::int32_t>(work.prefix));
  const auto is_taken = [&](auto bits)
                            HWY_ATTR { return hn::Eq(hn::And(bits, prefix_bits), prefix); };
  const std::uint32_t digit_bits = kMagnitudeBits ^ above;
  const auto digit = [&](float value) {
    return (std::bit_cast<std::uint32_t>(value) & digit_bits) >> work.bottom;
  };
  std::uint32_t* const counts = work.counts;
  const std::size_t bins = work.bins;
  Staged staged;
  for (std::size_t begin = 0; begin < work.count; begin += kChunk) {
    const float* from = work.values + begin;
    std::size_t n = std::min(kChunk, work.count - begin);
    if (above != 0) {
      n = stage<Names::none>(from, nullptr, 0, n, is_taken, staged);
      from = staged.values;
    }
    std::size_t i = 0;
    for (; i + 4 <= n; i += 4) {
      ++counts[digit(from[i])];
      ++counts[bins + digit(from[i + 1])];
      ++counts[2 * bins + digit(from[i + 2])];
      ++counts[3 * bins + digit(from[i + 3])];
    }
    for (; i < n; ++i) ++counts[digit(from[i])];
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
