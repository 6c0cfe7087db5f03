// RMSprop (Tieleman and Hinton 2012) in torch.optim's form, centered as Graves 2013, with L2 decay:
//   g ← g + λ·p        s ← α·s + ((1 − α)·g)·g        a ← α·a + (1 − α)·g (centered)
//   r = √s + ε, or √max(s − a·a, 0) + ε (centered)
//   p ← p − (η·g)/r, or b ← μ·b + g/r and p ← p − η·b (momentum)
// Where rounding makes s − a·a negative, torch's r is NaN.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules/rms_prop.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/rules/registry.h"
#include "kernels/rules/streams-inl.h"

#ifndef TUTTI_KERNELS_RULES_RMS_PROP_
#define TUTTI_KERNELS_RULES_RMS_PROP_
namespace tutti {
struct RmsPropNumbers {
  double rate;  ///< η
  double alpha;
  double epsilon;
  double decay;     ///< λ; 0: no decay at all, even of infinities
  double momentum;  ///< μ; 0: there is none, and no state of it
  bool centered;
};
}  // namespace tutti
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {

template <class T>
void update_rms_prop(const RmsPropNumbers& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  const auto rate = static_cast<T>(by.rate);
  const auto alpha = static_cast<T>(by.alpha);
  const auto fresh = static_cast<T>(1 - by.alpha);
  const auto epsilon = static_cast<T>(by.epsilon);
  const auto decay = static_cast<T>(by.decay);
  const auto momentum = static_cast<T>(by.momentum);
  const bool decays = by.decay != 0;
  const bool moves = by.momentum != 0;
  const bool centered = by.centered;
  T* const square_at = at.states[0];
  T* const momentum_at = at.states[1];
  T* const mean_at = at.states[moves ? 2 : 1];
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (decays) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    const auto s = hn::Add(hn::Mul(hn::Set(d, alpha), hn::LoadU(d, square_at + i)),
                           hn::Mul(hn::Mul(hn::Set(d, fresh), g), g));
    hn::StoreU(s, d, square_at + i);
    auto spread = s;
    if (centered) {
      const auto a = hn::Add(hn::Mul(hn::Set(d, alpha), hn::LoadU(d, mean_at + i)),
                             hn::Mul(hn::Set(d, fresh), g));
      hn::StoreU(a, d, mean_at + i);
      spread = hn::Sub(s, hn::Mul(a, a));
      spread = hn::IfThenElse(hn::Lt(spread, hn::Zero(d)), hn::Zero(d), spread);
    }
    const auto below = hn::Add(hn::Sqrt(spread), hn::Set(d, epsilon));
    auto step = hn::Div(hn::Mul(hn::Set(d, rate), g), below);
    if (moves) {
      const auto b =
          hn::Add(hn::Mul(hn::Set(d, momentum), hn::LoadU(d, momentum_at + i)), hn::Div(g, below));
      hn::StoreU(b, d, momentum_at + i);
      step = hn::Mul(hn::Set(d, rate), b);
    }
    hn::StoreU(hn::Sub(p, step), d, at.parameter + i);
  });
}

void update_rms_prop_on_target(const RmsPropNumbers& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_rms_prop<double>(by, target)
                                 : update_rms_prop<float>(by, target);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <fmt/format.h>

namespace tutti {
HWY_EXPORT(update_rms_prop_on_target);

namespace {

std::vector<RuleState> states_of(const RmsProp& rms) {
  std::vector<RuleState> states = {{"square_avg"}};
  if (rms.momentum != 0) states.push_back({"momentum_buffer"});
  if (rms.centered) states.push_back({"grad_avg"});
  return states;
}

}  // namespace

UpdateRule define(const RmsProp& rms) {
  return {.name = "RmsProp",
          .text = fmt::format("RMSprop lr {} alpha {} eps {} weight_decay {} momentum {}{}", rms.lr,
                              rms.alpha, rms.eps, rms.weight_decay, rms.momentum,
                              rms.centered ? " centered" : ""),
          .problem = first_broken({
              finite_and_not_negative("the learning rate", rms.lr),
              finite_and_not_negative("the weight decay", rms.weight_decay),
              finite_and_not_negative("eps", rms.eps),
              finite_and_not_negative("the momentum", rms.momentum),
              {is_in_unit_interval(rms.alpha), "alpha must be in [0, 1)"},
          }),
          .states = states_of(rms),
          .bind = [rms](const UpdateMoment& moment) -> UpdateKernel {
            const RmsPropNumbers by{.rate = rms.lr * moment.rate_factor,
                                    .alpha = rms.alpha,
                                    .epsilon = rms.eps,
                                    .decay = rms.weight_decay,
                                    .momentum = rms.momentum,
                                    .centered = rms.centered};
            return [by](const UpdateTarget& target) {
              HWY_DYNAMIC_DISPATCH(update_rms_prop_on_target)(by, target);
            };
          }};
}

}  // namespace tutti
#endif
