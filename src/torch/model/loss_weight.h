#pragma once

// How much the loss of the running backward counts, for operations that carry gradients from one
// worker to another. A worker's gradients are in units of its own loss, which whoever reduces them
// multiplies by its weight: Σ w·g. So a gradient that leaves for another worker is multiplied by
// the weight of the loss here, and what comes is divided by it.
//
// The weight is that of who takes the gradients of the parameters that the backward comes to
// (GradientSink), and of what runs it (LossWeightScope).
//
// Threads: the one that runs backward, as torch's GradMode is the thread's. Failure: none; who
// weighs the loss hears what cannot be counted.

#include <memory>
#include <vector>

#include "torch/model/gradient_hooks.h"

namespace tutti {

struct LossWeight {
  double value = 1;
  std::vector<std::weak_ptr<GradientSink>> sinks = {};  ///< who weighs it

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

/// Of the running backward; 1 where nobody weighs its loss. Those of different weights hear that
/// they cannot both be right.
const LossWeight& current_loss_weight();

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
