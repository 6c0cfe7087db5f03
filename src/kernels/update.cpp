#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/update.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/update-inl.h"

#if HWY_ONCE

#include <cmath>

#include "base/check.h"

namespace tutti {
HWY_EXPORT(update_sgd_on_target);
HWY_EXPORT(update_adam_on_target);
HWY_EXPORT(update_adagrad_on_target);

namespace {

void check(const UpdateTarget& target, bool first, bool second) {
  TUTTI_CHECK(target.dtype == DType::float32 || target.dtype == DType::float64, "an update of {}",
              name_of(target.dtype));
  TUTTI_CHECK(target.count >= 0, "an update of {} elements", target.count);
  TUTTI_CHECK(target.clip_value >= 0, "a gradient within ±{}", target.clip_value);
  if (target.count == 0) return;
  TUTTI_CHECK(target.gradient != nullptr, "an update without a gradient");
  TUTTI_CHECK(target.parameter != nullptr, "an update without a parameter");
  TUTTI_CHECK(!first || target.first != nullptr, "an update without its momentum");
  TUTTI_CHECK(!second || target.second != nullptr, "an update without its second moment");
}

void run(const SgdRule& rule, const UpdateTarget& target) {
  check(target, rule.momentum != 0, false);
  HWY_DYNAMIC_DISPATCH(update_sgd_on_target)(rule, target);
}

void run(const AdamCoefficients& coefficients, const UpdateTarget& target) {
  check(target, true, true);
  HWY_DYNAMIC_DISPATCH(update_adam_on_target)(coefficients, target);
}

void run(const AdagradCoefficients& coefficients, const UpdateTarget& target) {
  check(target, true, false);
  HWY_DYNAMIC_DISPATCH(update_adagrad_on_target)(coefficients, target);
}

}  // namespace

AdamCoefficients::AdamCoefficients(const AdamRule& rule)
    : beta1(rule.beta1),
      fresh1(1 - rule.beta1),
      beta2(rule.beta2),
      fresh2(1 - rule.beta2),
      epsilon(rule.epsilon),
      rate(rule.learning_rate / (1 - std::pow(rule.beta1, static_cast<double>(rule.step)))),
      root(std::sqrt(1 - std::pow(rule.beta2, static_cast<double>(rule.step)))),
      decay(rule.weight_decay),
      kept(1 - rule.shrink),
      shrinks(rule.shrink != 0),
      adds(rule.weight_decay != 0) {
  TUTTI_CHECK(rule.step >= 1, "update {} of a parameter", rule.step);
}

AdagradCoefficients::AdagradCoefficients(const AdagradRule& rule)
    : rate(rule.learning_rate / (1 + static_cast<double>(rule.step - 1) * rule.rate_decay)),
      epsilon(rule.epsilon),
      decay(rule.weight_decay),
      adds(rule.weight_decay != 0) {
  TUTTI_CHECK(rule.step >= 1, "update {} of a parameter", rule.step);
}

UpdateCoefficients coefficients_of(const UpdateRule& rule) {
  if (const auto* const adam = std::get_if<AdamRule>(&rule)) return AdamCoefficients(*adam);
  if (const auto* const adagrad = std::get_if<AdagradRule>(&rule)) {
    return AdagradCoefficients(*adagrad);
  }
  return std::get<SgdRule>(rule);
}

void update(const UpdateCoefficients& coefficients, const UpdateTarget& target) {
  std::visit([&](const auto& chosen) { run(chosen, target); }, coefficients);
}

void update(const UpdateRule& rule, const UpdateTarget& target) {
  update(coefficients_of(rule), target);
}

}  // namespace tutti
#endif
