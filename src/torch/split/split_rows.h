#pragma once

// What layers that are split by rows share: initial values that do not depend on the number of
// members, and the weight of each member's loss on the way of gradients.
//
// Threads: as Group. Failure: none of its own.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tutti/group.h"

namespace tutti {

/// Of the member that has most of `rows` rows of `width` elements; the largest number where that
/// does not fit.
std::uint64_t most_bytes(const Group& group, std::int64_t rows, std::int64_t width,
                         torch::ScalarType type);

/// Fills `rows`, which are those from `first` on of a tensor whose values depend on `seed` and
/// `tensor`, the tensor's number in the layer: any cut of it gives the same whole. `draw` fills a
/// block of rows.
void draw_rows(const torch::Tensor& rows, std::int64_t first, std::uint64_t seed,
               std::int64_t tensor,
               const std::function<void(torch::Tensor& block, torch::Generator& generator)>& draw);

// Gradients by the weight of the loss of the running backward (ops::loss_weight()). `layer` is for
// errors.

/// weight · gradient, on its way to other members; zeros for 0, whatever the gradient, as
/// given_without_weight() says.
torch::Tensor weighted(const torch::Tensor& gradient, const Group& group, const std::string& layer);
/// Σ w·g over the members as it comes to a parameter whose owner weighs it by `owners`
/// (SplitModule::gradient_weight()).
torch::Tensor of_own_rows(const torch::Tensor& gradient, const Group& group, double owners,
                          const std::string& layer);

// The memory of what both return is that of `x`: enter_weighted() is for what the layer has made
// itself and nobody else has, since the program may change it in place, and the result of
// leave_weighted() is only read.

/// `x`, of which the gradient that this member's loss gives is multiplied by its weight: where what
/// members' losses give is added up.
torch::Tensor enter_weighted(const torch::Tensor& x, const Group& group, const char* layer);
/// `x`, where the sum leaves for this member's part of the model, whose gradients are multiplied by
/// the weight later: divided by it, or for 0 as taken_without_weight() says.
torch::Tensor leave_weighted(const torch::Tensor& x, const Group& group, const char* layer);

/// A gradient of `like` that is sparse along dim 0 and coalesced: values of the same row are added
/// in the order in which they stand.
torch::Tensor sum_of_rows(const torch::Tensor& rows, const torch::Tensor& values,
                          const torch::Tensor& like);

}  // namespace tutti
