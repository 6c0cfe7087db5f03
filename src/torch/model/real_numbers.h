#pragma once

// Complex tensors as the real numbers of which they consist: two for each element, its real part
// first. Sums, means, optimizers' rules and codecs are of each real number by itself, as torch's
// optimizers in Python have it (torch.view_as_real).
//
// Pure functions.

#include <torch/torch.h>

#include <cstdint>

namespace tutti {

/// The same memory; [..., 2] of a complex tensor, which must not have torch's conjugate bit.
inline torch::Tensor as_reals(const torch::Tensor& tensor) {
  return tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
}

inline std::int64_t reals_of_each(const torch::Tensor& tensor) {
  return tensor.is_complex() ? 2 : 1;
}

inline std::int64_t count_of_reals(const torch::Tensor& tensor) {
  return tensor.numel() * reals_of_each(tensor);
}

/// The type of a tensor like that one whose real numbers are of this type.
inline torch::ScalarType type_like(const torch::Tensor& like, torch::ScalarType real) {
  return like.is_complex() ? c10::toComplexType(real) : real;
}

}  // namespace tutti
