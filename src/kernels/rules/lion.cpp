#include <fmt/format.h>

#include "kernels/rules/registry.h"

namespace tutti {

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
          .numbers = [lion](const UpdateMoment& moment) -> RuleNumbers {
            return LionNumbers{.rate = lion.lr * moment.rate_factor,
                               .beta1 = lion.beta1,
                               .beta2 = lion.beta2,
                               .shrink = shrink_of(Decay::times_rate, lion.lr, lion.weight_decay,
                                                   moment.rate_factor)};
          }};
}

}  // namespace tutti
