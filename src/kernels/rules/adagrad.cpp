// Adagrad (Duchi, Hazan and Singer 2011) in torch.optim's form, with L2 decay:
//   g ← g + λ·p        s ← s + g·g        p ← p − ((η/(1 + (t − 1)·δ))·g) / (√s + ε)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules/adagrad.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/rules/registry.h"
#include "kernels/rules/streams-inl.h"

#ifndef TUTTI_KERNELS_RULES_ADAGRAD_
#define TUTTI_KERNELS_RULES_ADAGRAD_
namespace tutti {
struct AdagradNumbers {
  double rate;  ///< η/(1 + (t − 1)·δ)
  double epsilon;
  double decay;  ///< λ; 0: no decay at all, even of infinities
};
}  // namespace tutti
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {

template <class T>
void update_adagrad(const AdagradNumbers& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  T* const sum_at = at.states[0];
  const auto epsilon = static_cast<T>(by.epsilon);
  const auto rate = static_cast<T>(by.rate);
  const auto decay = static_cast<T>(by.decay);
  const bool decays = by.decay != 0;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (decays) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    const auto s = hn::Add(hn::LoadU(d, sum_at + i), hn::Mul(g, g));
    hn::StoreU(s, d, sum_at + i);
    const auto below = hn::Add(hn::Sqrt(s), hn::Set(d, epsilon));
    hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, rate), g), below)), d, at.parameter + i);
  });
}

void update_adagrad_on_target(const AdagradNumbers& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_adagrad<double>(by, target)
                                 : update_adagrad<float>(by, target);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <fmt/format.h>

namespace tutti {
HWY_EXPORT(update_adagrad_on_target);

UpdateRule define(const Adagrad& adagrad) {
  return {.name = "Adagrad",
          .text = fmt::format("Adagrad lr {} lr_decay {} weight_decay {} initial_sum {} eps {}",
                              adagrad.lr, adagrad.lr_decay, adagrad.weight_decay,
                              adagrad.initial_sum, adagrad.eps),
          .problem = first_broken({
              finite_and_not_negative("the learning rate", adagrad.lr),
              finite_and_not_negative("lr_decay", adagrad.lr_decay),
              finite_and_not_negative("the weight decay", adagrad.weight_decay),
              finite_and_not_negative("the sum", adagrad.initial_sum),
              finite_and_not_negative("eps", adagrad.eps),
          }),
          .states = {{"sum", adagrad.initial_sum}},
          .bind = [adagrad](const UpdateMoment& moment) -> UpdateKernel {
            const auto before = static_cast<double>(moment.step - 1);
            const AdagradNumbers by{
                .rate = adagrad.lr * moment.rate_factor / (1 + before * adagrad.lr_decay),
                .epsilon = adagrad.eps,
                .decay = adagrad.weight_decay};
            return [by](const UpdateTarget& target) {
              HWY_DYNAMIC_DISPATCH(update_adagrad_on_target)(by, target);
            };
          }};
}

}  // namespace tutti
#endif
