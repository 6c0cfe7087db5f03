#pragma once

// Threads: any. Failure: none.

#include <torch/torch.h>

namespace tutti {

/// Whether the two have a byte in common; true, too, where that would take long to find out.
bool overlap(const torch::Tensor& one, const torch::Tensor& other);

}  // namespace tutti
