#pragma once

// How much the loss of the running backward counts, for operations that carry gradients from one
// worker to another. A worker's gradients are in units of its own loss, which whoever reduces them
// multiplies by its weight: Σ w·g. So a gradient that leaves for another worker is multiplied by
// the weight of the loss here, and what comes is divided by it.
//
// The weight is that of who takes the gradients of the parameters that the backward comes to
// (GradientSink), and of what runs it (LossWeightScope).
//
// Threads: the one that runs backward, as torch's GradMode is the thread's. Failure:
// InvalidArgument for a weight; otherwise none: who weighs the loss hears what cannot be counted.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/model/gradient_hooks.h"

namespace tutti {

struct LossWeight {
  double value = 1;
  std::vector<std::weak_ptr<GradientSink>> sinks = {};  ///< who weighs it
  std::string conflict = {};  ///< why those of different weights cannot both be right

  /// A gradient is to travel by it: who weighs the loss hears so, and of a conflict.
  void carried() const {
    for (const auto& weak : sinks) {
      if (const auto sink = weak.lock()) sink->carried();
    }
    if (!conflict.empty()) refuse(conflict);
  }
  void refuse(const std::string& why) const {
    for (const auto& weak : sinks) {
      if (const auto sink = weak.lock()) sink->refuse(why);
    }
  }
  bool owes() const {
    for (const auto& weak : sinks) {
      if (const auto sink = weak.lock(); sink && sink->owes()) return true;
    }
    return false;
  }
  void owe(const std::string& operation) const {
    for (const auto& weak : sinks) {
      if (const auto sink = weak.lock()) sink->owe(operation);
    }
  }
};

/// InvalidArgument unless the weight is finite, not negative, and at most 1e150: sums of weights
/// and of what they count are in float64.
void require_weight(double weight, std::optional<std::int64_t> shard = {});
/// InvalidArgument, which names the shard, unless the weight is 0, or between 1e-15 and 1e15: w ·
/// g, Σ w and quotients of weights are in float32, with a loss scale besides, where of less digits
/// would be lost and of more be infinite.
void require_loss_weight(double weight, std::optional<std::int64_t> shard = {});

/// The weight of the running backward's loss; 1 where nobody weighs it.
const LossWeight& current_loss_weight();

/// NaN is something.
bool is_zero(const torch::Tensor& gradient);

// Where the loss of the running backward has a weight of 0. `operation` is for the error.

/// What this worker gives to others: nothing, whatever `gradient` is. Once something has come from
/// the losses of others, it may be on its way to others again, and would be lost: it is refused.
torch::Tensor given_without_weight(const torch::Tensor& gradient, const std::string& operation);
/// What goes on backward here of what others' losses gave: as it came, since nothing can be divided
/// by 0. Who weighs the loss refuses it where it comes to a parameter.
torch::Tensor taken_without_weight(torch::Tensor gradient, const std::string& operation);
/// What others' losses gave to a parameter here that is in units of this worker's loss: it is
/// refused unless it is 0.
void refuse_without_weight(const torch::Tensor& gradient, const std::string& operation);

/// Backwards of this thread count so while it lives, whatever they come to: those that run inside
/// of another one come to a part of its graph alone.
class LossWeightScope {
 public:
  explicit LossWeightScope(LossWeight weight);
  ~LossWeightScope();
  LossWeightScope(const LossWeightScope&) = delete;
  LossWeightScope& operator=(const LossWeightScope&) = delete;

 private:
  LossWeight weight_;
  const LossWeightScope* outer_;
  friend const LossWeight& current_loss_weight();
};

}  // namespace tutti
