// The reductions on two vectors. Included once per target.

#if defined(TUTTI_KERNELS_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_COMBINE_INL_H_
#undef TUTTI_KERNELS_COMBINE_INL_H_
#else
#define TUTTI_KERNELS_COMBINE_INL_H_
#endif

#include <cstddef>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct SumOf {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Add(a, b);
  }
};

struct ProductOf {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) == 1 || (sizeof(T) == 8 && !std::is_floating_point_v<T>)) {
      // Not every target multiplies these widths; nothing is hot here.
      using U = std::conditional_t<sizeof(T) == 1, unsigned, std::make_unsigned_t<T>>;
      HWY_ALIGN T x[hn::MaxLanes(D())];
      HWY_ALIGN T y[hn::MaxLanes(D())];
      hn::Store(a, d, x);
      hn::Store(b, d, y);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
        x[i] = static_cast<T>(static_cast<U>(x[i]) * static_cast<U>(y[i]));
      }
      return hn::Load(d, x);
    } else {
      return hn::Mul(a, b);
    }
  }
};

// Comparison and selection, because targets differ in what their own maximum makes of NaN and of
// zeros of different sign: the first operand where it is NaN or strictly better, else the second.

struct MaxOf {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct MinOf {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Lt(a, b)), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct AllOf {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::And(a, b);
  }
};

struct AnyOf {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Or(a, b);
  }
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
