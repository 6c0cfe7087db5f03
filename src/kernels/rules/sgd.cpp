// Stochastic gradient descent, as torch.optim.SGD documents it (Sutskever et al. 2013 with the
// learning rate outside the momentum):
//   p ← p·(1 − κ)        g ← g + λ·p        v ← μ·v + (1 − τ)·g, or v ← g the first time
//   d = g + μ·v (Nesterov), v, or g without momentum        p ← p − η·d
// κ = 0 is torch's; otherwise SGDW (Loshchilov and Hutter 2019, algorithm 1).

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules/sgd.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/rules/registry.h"
#include "kernels/rules/streams-inl.h"

#ifndef TUTTI_KERNELS_RULES_SGD_
#define TUTTI_KERNELS_RULES_SGD_
namespace tutti {
struct SgdNumbers {
  double rate;      ///< η
  double momentum;  ///< μ; 0: there is none, and no state
  double fresh;     ///< 1 − τ
  double decay;     ///< λ; 0: no decay at all, even of infinities
  double shrink;    ///< κ; the same
  bool nesterov;
  bool starts;  ///< the first time: v is not read
};
}  // namespace tutti
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {

template <class T>
void update_sgd(const SgdNumbers& by, const UpdateTarget& target) {
  const Streams<T> at(target);
  T* const momentum_at = at.states[0];
  const auto rate = static_cast<T>(by.rate);
  const auto momentum = static_cast<T>(by.momentum);
  const auto fresh = static_cast<T>(by.fresh);
  const auto decay = static_cast<T>(by.decay);
  const auto kept = static_cast<T>(1 - by.shrink);
  const bool decays = by.decay != 0;
  const bool shrinks = by.shrink != 0;
  const bool moves = by.momentum != 0;
  const bool starts = by.starts;
  const bool nesterov = by.nesterov;
  for_vectors<T>(at.count, [&](auto d, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, at.parameter + i);
    auto g = at.gradient_at(d, i);
    if (shrinks) p = hn::Mul(p, hn::Set(d, kept));
    if (decays) g = hn::Add(g, hn::Mul(hn::Set(d, decay), p));
    if (moves) {
      auto v = g;
      if (!starts) {
        v = hn::Add(hn::Mul(hn::Set(d, momentum), hn::LoadU(d, momentum_at + i)),
                    hn::Mul(hn::Set(d, fresh), g));
      }
      hn::StoreU(v, d, momentum_at + i);
      g = nesterov ? hn::Add(g, hn::Mul(hn::Set(d, momentum), v)) : v;
    }
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, rate), g)), d, at.parameter + i);
  });
}

void update_sgd_on_target(const SgdNumbers& by, const UpdateTarget& target) {
  target.dtype == DType::float64 ? update_sgd<double>(by, target) : update_sgd<float>(by, target);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <fmt/format.h>

#include <cmath>

namespace tutti {
HWY_EXPORT(update_sgd_on_target);

UpdateRule define(const Sgd& sgd) {
  return {.name = "Sgd",
          .text = fmt::format("SGD lr {} momentum {} dampening {} weight_decay {} {}{}", sgd.lr,
                              sgd.momentum, sgd.dampening, sgd.weight_decay, text_of(sgd.decay),
                              sgd.nesterov ? " nesterov" : ""),
          .problem = first_broken({
              finite_and_not_negative("the learning rate", sgd.lr),
              finite_and_not_negative("the weight decay", sgd.weight_decay),
              finite_and_not_negative("the momentum", sgd.momentum),
              {std::isfinite(sgd.dampening), "the dampening must be finite"},
              {!sgd.nesterov || (sgd.momentum > 0 && sgd.dampening == 0),
               "Nesterov's form needs momentum and no dampening"},
          }),
          .states = sgd.momentum != 0 ? std::vector<RuleState>{{"momentum_buffer"}}
                                      : std::vector<RuleState>{},
          .bind = [sgd](const UpdateMoment& moment) -> UpdateKernel {
            const SgdNumbers by{
                .rate = sgd.lr * moment.rate_factor,
                .momentum = sgd.momentum,
                .fresh = 1 - sgd.dampening,
                .decay = sgd.decay == Decay::l2 ? sgd.weight_decay : 0,
                .shrink = shrink_of(sgd.decay, sgd.lr, sgd.weight_decay, moment.rate_factor),
                .nesterov = sgd.nesterov,
                // A row's momentum begins with 0, whenever it is touched for the first time.
                .starts = moment.step == 1 && !moment.row_sparse};
            return [by](const UpdateTarget& target) {
              HWY_DYNAMIC_DISPATCH(update_sgd_on_target)(by, target);
            };
          }};
}

}  // namespace tutti
#endif
