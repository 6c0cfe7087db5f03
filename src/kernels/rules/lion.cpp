// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), whose decoupled decay is κ = η·λ:
//   p ← p·(1 − κ)        p ← p − η·sign(β1·m + (1 − β1)·g)        m ← β2·m + (1 − β2)·g
// The sign of 0 is 0, that of NaN is NaN.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules/lion.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/rules/registry.h"
#include "kernels/rules/streams-inl.h"

#ifndef TUTTI_KERNELS_RULES_LION_
#define TUTTI_KERNELS_RULES_LION_
namespace tutti {
struct LionNumbers {
  double rate;  ///< η
  double beta1;
  double beta2;
  double shrink;  ///< κ; 0: no decay at all, even of infinities
};
}  // namespace tutti
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {

template <class T>
void update_lion(const LionNumbers& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  T* const m_at = at.states[0];
  const auto rate = static_cast<T>(by.rate);
  const auto beta1 = static_cast<T>(by.beta1);
  const auto fresh1 = static_cast<T>(1 - by.beta1);
  const auto beta2 = static_cast<T>(by.beta2);
  const auto fresh2 = static_cast<T>(1 - by.beta2);
  const auto kept = static_cast<T>(1 - by.shrink);
  const bool shrinks = by.shrink != 0;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, at.parameter + i);
    const auto g = at.gradient_at(d, i);
    const auto m = hn::LoadU(d, m_at + i);
    if (shrinks) p = hn::Mul(p, hn::Set(d, kept));
    const auto c = hn::Add(hn::Mul(hn::Set(d, beta1), m), hn::Mul(hn::Set(d, fresh1), g));
    const auto zero = hn::Zero(d);
    const auto sign = hn::IfThenElse(hn::Gt(c, zero), hn::Set(d, T{1}),
                                     hn::IfThenElse(hn::Lt(c, zero), hn::Set(d, T{-1}), c));
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, rate), sign)), d, at.parameter + i);
    hn::StoreU(hn::Add(hn::Mul(hn::Set(d, beta2), m), hn::Mul(hn::Set(d, fresh2), g)), d, m_at + i);
  });
}

void update_lion_on_target(const LionNumbers& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_lion<double>(by, target) : update_lion<float>(by, target);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <fmt/format.h>

namespace tutti {
HWY_EXPORT(update_lion_on_target);

UpdateRule define(const Lion& lion) {
  return {.name = "Lion",
          .text = fmt::format("Lion lr {} beta1 {} beta2 {} weight_decay {}", lion.lr, lion.beta1,
                              lion.beta2, lion.weight_decay),
          .problem = first_broken({
              finite_and_not_negative("the learning rate", lion.lr),
              finite_and_not_negative("the weight decay", lion.weight_decay),
              {is_in_unit_interval(lion.beta1) && is_in_unit_interval(lion.beta2),
               "betas must be in [0, 1)"},
          }),
          .states = {{"exp_avg"}},
          .bind = [lion](const UpdateMoment& moment) -> UpdateKernel {
            const LionNumbers by{.rate = lion.lr * moment.rate_factor,
                                 .beta1 = lion.beta1,
                                 .beta2 = lion.beta2,
                                 .shrink = shrink_of(Decay::times_rate, lion.lr, lion.weight_decay,
                                                     moment.rate_factor)};
            return [by](const UpdateTarget& target) {
              HWY_DYNAMIC_DISPATCH(update_lion_on_target)(by, target);
            };
          }};
}

}  // namespace tutti
#endif
