#include <fmt/format.h>

#include "kernels/rules/registry.h"

namespace tutti {

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
          .numbers = [adagrad](const UpdateMoment& moment) -> RuleNumbers {
            const auto before = static_cast<double>(moment.step - 1);
            return AdagradNumbers{
                .rate = adagrad.lr * moment.rate_factor / (1 + before * adagrad.lr_decay),
                .epsilon = adagrad.eps,
                .decay = adagrad.weight_decay};
          }};
}

}  // namespace tutti
