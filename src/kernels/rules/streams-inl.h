// What the loops of all rules need. Included once per target.

#if defined(TUTTI_KERNELS_RULES_STREAMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_RULES_STREAMS_INL_H_
#undef TUTTI_KERNELS_RULES_STREAMS_INL_H_
#else
#define TUTTI_KERNELS_RULES_STREAMS_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/update.h"

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls at(d, i) for all elements: whole vectors, then one by one with the same operations.
template <class T, class At>
HWY_INLINE void for_vectors(std::size_t count, const At& at) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) at(d, i);
  for (; i < count; ++i) at(one, i);
}

/// The memory that an update reads and writes, of type T.
template <class T>
struct Streams {
  static_assert(kMaxStates == 4);

  explicit Streams(const UpdateTarget& target)
      : gradient(static_cast<const T*>(target.gradient)),
        parameter(static_cast<T*>(target.parameter)),
        states{static_cast<T*>(target.states[0]), static_cast<T*>(target.states[1]),
               static_cast<T*>(target.states[2]), static_cast<T*>(target.states[3])},
        count(static_cast<std::size_t>(target.count)),
        scale(static_cast<T>(target.gradient_scale)),
        bound(static_cast<T>(target.clip_value)),
        clips(target.clip_value != 0) {}

  /// A NaN is neither above nor below, so it passes.
  template <class D>
  HWY_INLINE hn::Vec<D> gradient_at(D d, std::size_t i) const {
    const auto g = hn::Mul(hn::LoadU(d, gradient + i), hn::Set(d, scale));
    if (!clips) return g;
    const auto high = hn::Set(d, bound);
    const auto low = hn::Set(d, -bound);
    return hn::IfThenElse(hn::Gt(g, high), high, hn::IfThenElse(hn::Lt(g, low), low, g));
  }

  const T* gradient;
  T* parameter;
  T* states[kMaxStates];
  std::size_t count;
  T scale;
  T bound;
  bool clips;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
