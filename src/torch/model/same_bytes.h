#pragma once

// Pure function.

#include <torch/torch.h>

#include <cstring>

namespace tutti {

/// Whether two tensors of one shape and type hold the same bits.
inline bool same_bytes(const torch::Tensor& a, const torch::Tensor& b) {
  const auto left = a.contiguous();
  const auto right = b.contiguous();
  return left.nbytes() == right.nbytes() &&
         (left.nbytes() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

}  // namespace tutti
