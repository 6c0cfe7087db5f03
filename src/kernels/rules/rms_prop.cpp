#include <fmt/format.h>

#include "kernels/rules/registry.h"

namespace tutti {
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
          .numbers = [rms](const UpdateMoment& moment) -> RuleNumbers {
            return RmsPropNumbers{.rate = rms.lr * moment.rate_factor,
                                  .alpha = rms.alpha,
                                  .epsilon = rms.eps,
                                  .decay = rms.weight_decay,
                                  .momentum = rms.momentum,
                                  .centered = rms.centered};
          }};
}

}  // namespace tutti
