#pragma once

// The mean of a value over workers.
//
// Threads: one. Failure: InvalidArgument for a weight or value that makes no sense; else that of an
// all-reduce.

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <optional>

#include "tutti/group.h"

namespace tutti {

/// Σ weight · value / Σ weight over the members, in float64 along the tree over ranks: a new tensor
/// of the value's type. A value of weight 0 counts for nothing; NaN where no value has a weight.
/// `collectively` runs the call that waits for the others, of several members alone.
torch::Tensor weighted_mean(const Group& group, const torch::Tensor& value, double weight,
                            std::optional<std::chrono::milliseconds> deadline,
                            const std::function<void(const std::function<void()>&)>& collectively);

}  // namespace tutti
