#pragma once

// Pure function.

#include <torch/torch.h>

#include <cstring>

#include "torch/model/resolved.h"

namespace tutti {

/// Whether two tensors of one shape and type have the same bits as their elements.
inline bool same_bytes(const torch::Tensor& a, const torch::Tensor& b) {
  const auto left = resolved(a).contiguous();
  const auto right = resolved(b).contiguous();
  return left.nbytes() == right.nbytes() &&
         (left.nbytes() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

}  // namespace tutti
