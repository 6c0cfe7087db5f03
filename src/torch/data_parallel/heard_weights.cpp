#include "torch/data_parallel/heard_weights.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

HeardWeights::OfStep& HeardWeights::current() {
  const auto step = protocol_.is_open() ? protocol_.number() : protocol_.last_number() + 1;
  if (of_step_.step != step) of_step_ = {.step = step};
  return of_step_;
}

void HeardWeights::refuse(const std::string& why) {
  if (current().refusal.empty()) of_step_.refusal = why;
}

void HeardWeights::require(double weight) const {
  if (of_step_.step != protocol_.number()) return;
  if (!of_step_.refusal.empty()) throw InvalidArgument(of_step_.refusal);
  if (!of_step_.weight || *of_step_.weight == weight) return;
  throw InvalidArgument(
      fmt::format("step {}: operations (tutti/ops.h) have carried gradients of a loss that counts "
                  "{}, and it was to count {}: call next_weight() before its backward",
                  of_step_.step, *of_step_.weight, weight));
}

}  // namespace tutti
