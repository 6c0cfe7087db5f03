// Adam (Kingma and Ba 2015, algorithm 1) with L2 decay, or AdamW (Loshchilov and Hutter 2019,
// algorithm 2; κ = η·λ is libtorch's form):
//   p ← p·(1 − κ) (AdamW)        g ← g + λ·p (Adam)
//   m ← β1·m + (1 − β1)·g        v ← β2·v + ((1 − β2)·g)·g
//   p ← p − ((η/(1 − β1^t))·m) / (√v/√(1 − β2^t) + ε)
// With AMSGrad (Reddi, Kale and Kumar 2018) in torch.optim's form the last line has w ← max(w, v)
// in the place of v.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules/adam.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/rules/registry.h"
#include "kernels/rules/streams-inl.h"

#ifndef TUTTI_KERNELS_RULES_ADAM_
#define TUTTI_KERNELS_RULES_ADAM_
namespace tutti {
struct AdamNumbers {
  double beta1;
  double beta2;
  double epsilon;
  double rate;    ///< η/(1 − β1^t)
  double root;    ///< √(1 − β2^t)
  double decay;   ///< λ; 0: no decay at all, even of infinities
  double shrink;  ///< κ; the same
  bool amsgrad;
};
}  // namespace tutti
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {

template <class T, bool is_amsgrad>
void update_adam(const AdamNumbers& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  T* const m_at = at.states[0];
  T* const v_at = at.states[1];
  T* const most_at = at.states[2];
  const auto beta1 = static_cast<T>(by.beta1);
  const auto fresh1 = static_cast<T>(1 - by.beta1);
  const auto beta2 = static_cast<T>(by.beta2);
  const auto fresh2 = static_cast<T>(1 - by.beta2);
  const auto epsilon = static_cast<T>(by.epsilon);
  const auto rate = static_cast<T>(by.rate);
  const auto root = static_cast<T>(by.root);
  const auto decay = static_cast<T>(by.decay);
  const auto kept = static_cast<T>(1 - by.shrink);
  const bool shrinks = by.shrink != 0;
  const bool decays = by.decay != 0;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (shrinks) p = hn::Mul(p, hn::Set(d, kept));
    if (decays) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    const auto m =
        hn::Add(hn::Mul(hn::Set(d, beta1), hn::LoadU(d, m_at + i)), hn::Mul(hn::Set(d, fresh1), g));
    const auto v = hn::Add(hn::Mul(hn::Set(d, beta2), hn::LoadU(d, v_at + i)),
                           hn::Mul(hn::Mul(hn::Set(d, fresh2), g), g));
    hn::StoreU(m, d, m_at + i);
    hn::StoreU(v, d, v_at + i);
    auto most = v;
    if constexpr (is_amsgrad) {
      const auto before = hn::LoadU(d, most_at + i);
      most = hn::IfThenElse(hn::Lt(v, before), before, v);
      hn::StoreU(most, d, most_at + i);
    }
    const auto below = hn::Add(hn::Div(hn::Sqrt(most), hn::Set(d, root)), hn::Set(d, epsilon));
    hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, rate), m), below)), d, at.parameter + i);
  });
}

template <class T>
void update_adam(const AdamNumbers& by, const UpdateTarget& target) {
  by.amsgrad ? update_adam<T, true>(by, target) : update_adam<T, false>(by, target);
}

void update_adam_on_target(const AdamNumbers& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_adam<double>(by, target) : update_adam<float>(by, target);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <fmt/format.h>

#include <cmath>

namespace tutti {
HWY_EXPORT(update_adam_on_target);

namespace {

/// Both forms, but for what only one of them has.
template <class AnyAdam>
UpdateRule define_adam(std::string_view name, const AnyAdam& adam, Decay decay) {
  std::vector<RuleState> states = {{"exp_avg"}, {"exp_avg_sq"}};
  if (adam.amsgrad) states.push_back({"max_exp_avg_sq"});
  return {.name = std::string(name),
          .text = fmt::format("{} lr {} beta1 {} beta2 {} eps {} weight_decay {}", name, adam.lr,
                              adam.beta1, adam.beta2, adam.eps, adam.weight_decay),
          .problem = first_broken({
              finite_and_not_negative("the learning rate", adam.lr),
              finite_and_not_negative("the weight decay", adam.weight_decay),
              finite_and_not_negative("eps", adam.eps),
              {is_in_unit_interval(adam.beta1) && is_in_unit_interval(adam.beta2),
               "betas must be in [0, 1)"},
          }),
          .states = std::move(states),
          .bind = [adam, decay](const UpdateMoment& moment) -> UpdateKernel {
            const auto t = static_cast<double>(moment.step);
            const AdamNumbers by{
                .beta1 = adam.beta1,
                .beta2 = adam.beta2,
                .epsilon = adam.eps,
                .rate = adam.lr * moment.rate_factor / (1 - std::pow(adam.beta1, t)),
                .root = std::sqrt(1 - std::pow(adam.beta2, t)),
                .decay = decay == Decay::l2 ? adam.weight_decay : 0,
                .shrink = shrink_of(decay, adam.lr, adam.weight_decay, moment.rate_factor),
                .amsgrad = adam.amsgrad};
            return [by](const UpdateTarget& target) {
              HWY_DYNAMIC_DISPATCH(update_adam_on_target)(by, target);
            };
          }};
}

}  // namespace

UpdateRule define(const Adam& adam) {
  auto rule = define_adam("Adam", adam, Decay::l2);
  if (adam.amsgrad) rule.text += " amsgrad";
  return rule;
}

UpdateRule define(const AdamW& adam) {
  auto rule = define_adam("AdamW", adam, adam.decay);
  rule.text += fmt::format(" {}{}", text_of(adam.decay), adam.amsgrad ? " amsgrad" : "");
  if (adam.decay == Decay::l2) rule.problem = "with Decay::l2 it is Adam";
  return rule;
}

}  // namespace tutti
#endif
