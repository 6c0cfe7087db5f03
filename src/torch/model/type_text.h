#pragma once

// A tensor's type and sizes, as errors and labels name them.
//
// Threads: pure functions. Failure: none.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <string>

namespace tutti {

/// "Float [2, 3]"
inline std::string type_text(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

}  // namespace tutti
