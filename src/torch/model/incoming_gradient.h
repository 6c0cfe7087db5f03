#pragma once

// Requirements of a gradient that is to be folded.
//
// Threads: any. Failure: Unsupported and InvalidArgument name the parameter.

#include <torch/torch.h>

#include <string>

namespace tutti {

/// Throws where `gradient` carries a graph, or is sparse and the parameter is not row-sparse.
void require_plain(const torch::Tensor& gradient, const std::string& name, bool row_sparse);

/// `gradient` with the strides of `like`, copied only if it has others: elements are added to those
/// of the other workers, which have the parameter's layout.
torch::Tensor laid_out_as(const torch::Tensor& like, const torch::Tensor& gradient);

/// True where nothing but `gradient` itself, which may be a view, holds its memory.
bool is_sole_owner(const torch::Tensor& gradient);

}  // namespace tutti
