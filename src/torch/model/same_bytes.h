#pragma once

// Tensors as bytes.
//
// Threads: any. Failure: none.

#include <torch/torch.h>

#include <cstring>

#include "torch/model/resolved.h"

namespace tutti {

/// Whether two tensors of one shape and type have the same bits as their elements.
inline bool same_bytes(const torch::Tensor& a, const torch::Tensor& b) {
  const auto left = on_host(a).contiguous();
  const auto right = on_host(b).contiguous();
  return left.nbytes() == right.nbytes() &&
         (left.nbytes() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

/// `to` lies dense on the host, and gets as many bytes; torch's versions count it.
inline void copy_bytes(const torch::Tensor& to, const void* from) {
  if (to.nbytes() > 0) std::memcpy(to.data_ptr(), from, to.nbytes());
  to.unsafeGetTensorImpl()->bump_version();
}

}  // namespace tutti
