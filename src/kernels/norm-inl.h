// The sum of squares of a block. Included once per target.

#if defined(TUTTI_KERNELS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_NORM_INL_H_
#undef TUTTI_KERNELS_NORM_INL_H_
#else
#define TUTTI_KERNELS_NORM_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"
#include "kernels/lanes-inl.h"
#include "kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class T>
HWY_INLINE hn::Vec<D> load_as_double(D d, const T* from) {
  if constexpr (std::is_same_v<T, double>) {
    return load(d, from);
  } else {
    return hn::PromoteTo(d, load(hn::Rebind<float, D>(), from));
  }
}

template <class T>
double squares_of_block(const T* data, std::size_t count) {
  constexpr std::size_t kSums = 16;
  // Four vectors of four are all the sums; where vectors are shorter, the block, which the
  // first-level cache holds, is read again for each further four vectors.
  const hn::CappedTag<double, 4> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t body = count / kSums * kSums;
  // Zeros in place of what is missing leave the sums alone, bit for bit: none of them is −0.
  T rest[kSums] = {};
  std::copy(data + body, data + count, rest);

  HWY_ALIGN double sums[kSums];
  for (std::size_t column = 0; column < kSums; column += 4 * lanes) {
    auto s0 = hn::Zero(d);
    auto s1 = hn::Zero(d);
    auto s2 = hn::Zero(d);
    auto s3 = hn::Zero(d);
    const auto add_row = [&](const T* row) HWY_ATTR {
      const auto x0 = load_as_double(d, row);
      const auto x1 = load_as_double(d, row + lanes);
      const auto x2 = load_as_double(d, row + 2 * lanes);
      const auto x3 = load_as_double(d, row + 3 * lanes);
      s0 = hn::Add(s0, hn::Mul(x0, x0));
      s1 = hn::Add(s1, hn::Mul(x1, x1));
      s2 = hn::Add(s2, hn::Mul(x2, x2));
      s3 = hn::Add(s3, hn::Mul(x3, x3));
    };
    for (std::size_t i = 0; i < body; i += kSums) add_row(data + i + column);
    add_row(rest + column);
    hn::Store(s0, d, sums + column);
    hn::Store(s1, d, sums + column + lanes);
    hn::Store(s2, d, sums + column + 2 * lanes);
    hn::Store(s3, d, sums + column + 3 * lanes);
  }
  return tree_sum(sums);
}

template <class T>
void squares_of_blocks_typed(const void* bytes, std::size_t count, std::span<double> blocks) {
  constexpr auto kBlock = static_cast<std::size_t>(kNormBlock);
  const auto* const data = static_cast<const T*>(bytes);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    blocks[b] = squares_of_block(data + b * kBlock, std::min(kBlock, count - b * kBlock));
  }
}

void squares_of_blocks_on_target(const void* data, DType dtype, std::size_t count,
                                 std::span<double> blocks) {
  switch (dtype) {
    case DType::float32:
      return squares_of_blocks_typed<float>(data, count, blocks);
    case DType::float64:
      return squares_of_blocks_typed<double>(data, count, blocks);
    case DType::float16:
      return squares_of_blocks_typed<Float16>(data, count, blocks);
    case DType::bfloat16:
      return squares_of_blocks_typed<BFloat16>(data, count, blocks);
    default:
      return;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
