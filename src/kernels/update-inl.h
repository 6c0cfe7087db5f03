// The loops of update.h. Included once per target.

#if defined(TUTTI_KERNELS_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_UPDATE_INL_H_
#undef TUTTI_KERNELS_UPDATE_INL_H_
#else
#define TUTTI_KERNELS_UPDATE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/update_coefficients.h"

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

template <class T>
struct Streams {
  explicit Streams(const UpdateTarget& target)
      : gradient(static_cast<const T*>(target.gradient)),
        parameter(static_cast<T*>(target.parameter)),
        first(static_cast<T*>(target.first)),
        second(static_cast<T*>(target.second)),
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
  T* first;
  T* second;
  std::size_t count;
  T scale;
  T bound;
  bool clips;
};

template <class T>
void update_sgd(const SgdRule& rule, const UpdateTarget& target) {
  const Streams<T> at(target);
  const auto rate = static_cast<T>(rule.learning_rate);
  const auto momentum = static_cast<T>(rule.momentum);
  const auto fresh = static_cast<T>(1 - rule.dampening);
  const auto decay = static_cast<T>(rule.weight_decay);
  const auto kept = static_cast<T>(1 - rule.shrink);
  const bool decays = rule.weight_decay != 0;
  const bool shrinks = rule.shrink != 0;
  const bool moves = rule.momentum != 0;
  const bool starts = rule.starts;
  const bool nesterov = rule.nesterov;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (shrinks) p = hn::Mul(p, hn::Set(d, kept));
    if (decays) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    if (moves) {
      auto v = g;
      if (!starts) {
        v = hn::Add(hn::Mul(hn::Set(d, momentum), hn::LoadU(d, at.first + i)),
                    hn::Mul(hn::Set(d, fresh), g));
      }
      hn::StoreU(v, d, at.first + i);
      g = nesterov ? hn::Add(g, hn::Mul(hn::Set(d, momentum), v)) : v;
    }
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, rate), g)), d, at.parameter + i);
  });
}

template <class T>
void update_adam(const AdamCoefficients& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  const auto beta1 = static_cast<T>(by.beta1);
  const auto fresh1 = static_cast<T>(by.fresh1);
  const auto beta2 = static_cast<T>(by.beta2);
  const auto fresh2 = static_cast<T>(by.fresh2);
  const auto epsilon = static_cast<T>(by.epsilon);
  const auto rate = static_cast<T>(by.rate);
  const auto root = static_cast<T>(by.root);
  const auto decay = static_cast<T>(by.decay);
  const auto kept = static_cast<T>(by.kept);
  const bool shrinks = by.shrinks;
  const bool adds = by.adds;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (shrinks) p = hn::Mul(p, hn::Set(d, kept));
    if (adds) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    const auto m = hn::Add(hn::Mul(hn::Set(d, beta1), hn::LoadU(d, at.first + i)),
                           hn::Mul(hn::Set(d, fresh1), g));
    const auto v = hn::Add(hn::Mul(hn::Set(d, beta2), hn::LoadU(d, at.second + i)),
                           hn::Mul(hn::Mul(hn::Set(d, fresh2), g), g));
    hn::StoreU(m, d, at.first + i);
    hn::StoreU(v, d, at.second + i);
    const auto below = hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, root)), hn::Set(d, epsilon));
    hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, rate), m), below)), d, at.parameter + i);
  });
}

template <class T>
void update_adagrad(const AdagradCoefficients& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  const auto epsilon = static_cast<T>(by.epsilon);
  const auto rate = static_cast<T>(by.rate);
  const auto decay = static_cast<T>(by.decay);
  const bool adds = by.adds;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (adds) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    const auto s = hn::Add(hn::LoadU(d, at.first + i), hn::Mul(g, g));
    hn::StoreU(s, d, at.first + i);
    const auto below = hn::Add(hn::Sqrt(s), hn::Set(d, epsilon));
    hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, rate), g), below)), d, at.parameter + i);
  });
}

void update_sgd_on_target(const SgdRule& rule, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_sgd<double>(rule, target)
                                 : update_sgd<float>(rule, target);
}

void update_adam_on_target(const AdamCoefficients& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_adam<double>(by, target) : update_adam<float>(by, target);
}

void update_adagrad_on_target(const AdagradCoefficients& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_adagrad<double>(by, target)
                                 : update_adagrad<float>(by, target);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#endif
