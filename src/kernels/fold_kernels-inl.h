// Canonical trees over few sources, in registers. Included once per target.

#if defined(TUTTI_KERNELS_FOLD_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_FOLD_KERNELS_INL_H_
#undef TUTTI_KERNELS_FOLD_KERNELS_INL_H_
#else
#define TUTTI_KERNELS_FOLD_KERNELS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/combine-inl.h"
#include "kernels/fold_kernels.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The canonical tree over N leaves at element i.
template <int N, class Op, class S, class D>
HWY_INLINE hn::Vec<D> tree_at(D d, const S* const* leaves, std::size_t i) {
  if constexpr (N == 1) {
    return load(d, leaves[0] + i);
  } else {
    static_assert(N <= 8);
    constexpr int kLeft = N <= 2 ? 1 : N <= 4 ? 2 : 4;
    const auto left = tree_at<kLeft, Op>(d, leaves, i);
    return Op()(d, left, tree_at<N - kLeft, Op>(d, leaves + kLeft, i));
  }
}

/// FoldKernels::Kernel. Several vectors of each source at a time, because sources at equal offsets
/// from a page share the sets of the first-level cache: a line is used up before it is evicted.
template <int N, class Op, class S, class R>
void fold_leaves(const void* const* sources, std::span<void* const> destinations, std::size_t count,
                 double divisor) {
  using C = Computed<S>;
  const hn::ScalableTag<C> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, static_cast<C>(divisor));
  const bool divides = divisor != 1.0;
  std::array<const S*, N> leaves;
  for (int k = 0; k < N; ++k) leaves[k] = static_cast<const S*>(sources[k]);

  const auto at = [&](std::size_t i) HWY_ATTR {
    const auto folded = tree_at<N, Op>(d, leaves.data(), i);
    if constexpr (std::is_floating_point_v<C>) {
      if (divides) return hn::Div(folded, by);
    }
    return folded;
  };
  std::size_t i = 0;
  if constexpr (N == 2) {
    // Two workers on a host, in place: twice the speed of the general loop in the caches.
    if (destinations.size() == 2) {
      R* const first = static_cast<R*>(destinations[0]);
      R* const second = static_cast<R*>(destinations[1]);
      for (; i + 2 * lanes <= count; i += 2 * lanes) {
        const auto v0 = at(i);
        const auto v1 = at(i + lanes);
        store(v0, d, first + i);
        store(v1, d, first + i + lanes);
        store(v0, d, second + i);
        store(v1, d, second + i + lanes);
      }
    }
  }
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = at(i);
    const auto v1 = at(i + lanes);
    const auto v2 = at(i + 2 * lanes);
    const auto v3 = at(i + 3 * lanes);
    for (void* const destination : destinations) {
      R* const to = static_cast<R*>(destination) + i;
      store(v0, d, to);
      store(v1, d, to + lanes);
      store(v2, d, to + 2 * lanes);
      store(v3, d, to + 3 * lanes);
    }
  }
  for (; i < count; i += lanes) {
    const auto v = at(i);
    for (void* const destination : destinations) {
      store(v, d, static_cast<R*>(destination) + i);
    }
  }
}

template <class Op, class S, class R>
FoldKernels kernels_of() {
  using C = Computed<S>;
  FoldKernels kernels;
  kernels.lanes = hn::Lanes(hn::ScalableTag<C>());
  kernels.value_size = sizeof(C);
  kernels.sources_are_values = std::is_same_v<S, C>;
  kernels.value_to_value = fold_leaves<2, Op, C, C>;
  kernels.value_to_result = fold_leaves<2, Op, C, R>;
  // One leaf is not combined: one kernel serves every reduction.
  kernels.source_to_value[1] = fold_leaves<1, SumOf, S, C>;
  kernels.source_to_result[1] = fold_leaves<1, SumOf, S, R>;
  // Floating-point sums, of which training consists, get more kernels.
  if constexpr (std::is_same_v<Op, SumOf> && std::is_floating_point_v<C>) {
    kernels.widest = 8;
    kernels.source_to_value[2] = fold_leaves<2, Op, S, C>;
    kernels.source_to_value[3] = fold_leaves<3, Op, S, C>;
    kernels.source_to_value[4] = fold_leaves<4, Op, S, C>;
    kernels.source_to_value[8] = fold_leaves<8, Op, S, C>;
    kernels.source_to_result[2] = fold_leaves<2, Op, S, R>;
    kernels.source_to_result[3] = fold_leaves<3, Op, S, R>;
    kernels.source_to_result[4] = fold_leaves<4, Op, S, R>;
    kernels.source_to_result[8] = fold_leaves<8, Op, S, R>;
  }
  return kernels;
}

template <class S, class R = S>
FoldKernels kernels_of_numbers(Reduction reduction) {
  switch (reduction) {
    case Reduction::max:
      return kernels_of<MaxOf, S, R>();
    case Reduction::min:
      return kernels_of<MinOf, S, R>();
    case Reduction::product:
      return kernels_of<ProductOf, S, R>();
    default:
      return kernels_of<SumOf, S, R>();
  }
}

template <class R>
FoldKernels kernels_of_16_bit(DType source_type, Reduction reduction) {
  if (source_type == DType::float32) return kernels_of_numbers<float, R>(reduction);
  return kernels_of_numbers<R>(reduction);
}

FoldKernels fold_kernels_on_target(DType source_type, DType result_type, Reduction reduction) {
  switch (result_type) {
    case DType::float32:
      return kernels_of_numbers<float>(reduction);
    case DType::float64:
      return kernels_of_numbers<double>(reduction);
    case DType::float16:
      return kernels_of_16_bit<Float16>(source_type, reduction);
    case DType::bfloat16:
      return kernels_of_16_bit<BFloat16>(source_type, reduction);
    case DType::int32:
      return kernels_of_numbers<std::int32_t>(reduction);
    case DType::int64:
      return kernels_of_numbers<std::int64_t>(reduction);
    case DType::uint8:
      return kernels_of_numbers<std::uint8_t>(reduction);
    case DType::boolean:
      break;
  }
  if (reduction == Reduction::logical_and) return kernels_of<AllOf, std::uint8_t, std::uint8_t>();
  return kernels_of<AnyOf, std::uint8_t, std::uint8_t>();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
