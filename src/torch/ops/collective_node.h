#pragma once

// The place of a collective in autograd's graph, and whose losses what it carries is of.
//
// Threads: as Group. Failure: Unsupported for second derivatives; what the gradient throws.

#include <torch/torch.h>

#include <functional>

#include "tutti/group.h"

namespace tutti::ops {

/// The gradient of a collective's input, from that of its result: contiguous, zeros where there is
/// none. Undefined where the result does not depend on this member's input.
using GradientOfCollective = std::function<torch::Tensor(const torch::Tensor& gradient)>;

/// The same where it is of the members' own losses that it tells the others. What this member gives
/// is multiplied by the weight of its loss (loss_weight.h), and what it gets is divided by it: by 1
/// where the weight is 0, of which `operation` is said to who weighs the loss unless all of it is
/// 0. As it is while an UnweightedGuard lives, and in a group of one.
GradientOfCollective of_weighted_losses(const Group& group, const char* operation,
                                        GradientOfCollective gradient);

/// Whether a collective on tensors of this type has a gradient now, which is the same on all
/// members.
bool records_gradients(torch::ScalarType type);

/// `result`, fresh, of a collective of `input`. Its backward calls `gradient` whether `input` needs
/// one or not: others may wait there.
torch::Tensor with_gradient(torch::Tensor result, const torch::Tensor& input,
                            GradientOfCollective gradient);
/// The same where the result is `input` itself: a view of it, which torch refuses to change in
/// place where gradients are recorded, as the input that a function of its own returns.
torch::Tensor view_with_gradient(const torch::Tensor& input, GradientOfCollective gradient);

}  // namespace tutti::ops
