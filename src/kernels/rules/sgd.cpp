#include <fmt/format.h>

#include <cmath>

#include "kernels/rules/registry.h"

namespace tutti {

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
          .numbers = [sgd](const UpdateMoment& moment) -> RuleNumbers {
            return SgdNumbers{
                .rate = sgd.lr * moment.rate_factor,
                .momentum = sgd.momentum,
                .fresh = 1 - sgd.dampening,
                .decay = sgd.decay == Decay::l2 ? sgd.weight_decay : 0,
                .shrink = shrink_of(sgd.decay, sgd.lr, sgd.weight_decay, moment.rate_factor),
                .nesterov = sgd.nesterov,
                // A row's momentum begins with 0, whenever it is touched for the first time.
                .starts = moment.step == 1 && !moment.row_sparse};
          }};
}

}  // namespace tutti
