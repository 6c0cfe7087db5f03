#pragma once

// Models some of whose parameters are split over a group (split_module.h): the norm of all
// gradients, and split tensors as a whole, which another number of members can take up.
//
// Threads: as Group. Failure: that of Group; InvalidArgument changes nothing.

#include <torch/torch.h>

#include "tutti/group.h"
#include "tutti/split_module.h"

namespace tutti {

/// As torch::nn::utils::clip_grad_norm_ for the model that the members have together: split
/// parameters' squares are added over the group, those of other parameters counted once, and what a
/// ParallelCrossEntropy's next step() takes is among them. All are multiplied by
/// max_norm / (norm + 1e-6) where that is less than 1. Returns the norm
/// before, the same on all members. Squares are added in float64. Collective; `max_norm` must be
/// positive. Layers that are split over another group are InvalidArgument.
double clip_grad_norm(const Group& group, torch::nn::Module& module, double max_norm);

/// The whole on `root`, an undefined tensor on the others: nothing as large lies anywhere else.
/// Collective.
torch::Tensor gather_whole(const Group& group, const SplitTensor& tensor, int root);
/// This member's rows become those of the whole, which `root` has and the others leave undefined.
/// Collective. A whole of other sizes or another type is InvalidArgument on the root, and
/// PeerFailed on the others.
void scatter_whole(const Group& group, const SplitTensor& tensor, const torch::Tensor& whole,
                   int root);
/// The same from a whole that this member has, such as a file that it maps: nothing is sent.
void take_rows(const SplitTensor& tensor, const torch::Tensor& whole);

}  // namespace tutti
