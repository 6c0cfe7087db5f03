#pragma once

// Pure function.

#include <torch/torch.h>

namespace tutti {

/// The tensor itself, or a copy where its memory is not what its elements are: torch's conjugate
/// and negative bits, as of imag(z.conj()). Whoever reads memory asks for it.
inline torch::Tensor resolved(const torch::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg();
}

/// The same on the host.
inline torch::Tensor on_host(const torch::Tensor& tensor) { return resolved(tensor.cpu()); }

/// Whether memory is read and written as it is.
inline bool is_resolved(const torch::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace tutti
