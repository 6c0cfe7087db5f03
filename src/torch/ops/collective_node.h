#pragma once

// The place of a collective in autograd's graph.
//
// Threads: as Group. Failure: Unsupported for second derivatives; what the gradient throws.

#include <torch/torch.h>

#include <functional>

namespace tutti::ops {

/// The gradient of a collective's input, from that of its result: contiguous, zeros where there is
/// none. Undefined where the result does not depend on this member's input.
using GradientOfCollective = std::function<torch::Tensor(const torch::Tensor& gradient)>;

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
