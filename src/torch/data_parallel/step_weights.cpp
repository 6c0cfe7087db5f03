#include "torch/data_parallel/step_weights.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

StepWeights::OfStep& StepWeights::of_this() {
  const auto step = protocol_.is_open() ? protocol_.number() : protocol_.last_number() + 1;
  if (of_step_.step != step) of_step_ = {.step = step};
  return of_step_;
}

void StepWeights::refuse(const std::string& why) {
  if (of_this().refusal.empty()) of_step_.refusal = why;
}

void StepWeights::publish() {
  if (of_step_.step != protocol_.number()) return;
  if (!of_step_.refusal.empty()) throw InvalidArgument(of_step_.refusal);
  if (!of_step_.weight || *of_step_.weight == current_) return;
  throw InvalidArgument(
      fmt::format("step {}: operations (tutti/ops.h) have carried gradients of a loss that counts "
                  "{}, and it was to count {}: call next_weight() before its backward",
                  of_step_.step, *of_step_.weight, current_));
}

}  // namespace tutti
