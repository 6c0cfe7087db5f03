#include <fmt/format.h>

#include <cmath>

#include "kernels/rules/registry.h"

namespace tutti {
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
          .numbers = [adam, decay](const UpdateMoment& moment) -> RuleNumbers {
            const auto t = static_cast<double>(moment.step);
            return AdamNumbers{
                .beta1 = adam.beta1,
                .beta2 = adam.beta2,
                .epsilon = adam.eps,
                .rate = adam.lr * moment.rate_factor / (1 - std::pow(adam.beta1, t)),
                .root = std::sqrt(1 - std::pow(adam.beta2, t)),
                .decay = decay == Decay::l2 ? adam.weight_decay : 0,
                .shrink = shrink_of(decay, adam.lr, adam.weight_decay, moment.rate_factor),
                .amsgrad = adam.amsgrad};
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
