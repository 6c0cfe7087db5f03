#pragma once

// As much of libtorch as tutti/partial.h and tutti/recompute.h name: read in a second, where the
// real one takes ten.

namespace at {

struct TensorOptions {
  TensorOptions requires_grad(bool) const;
};

struct Tensor {
  TensorOptions options() const;
};

struct Generator {};

Tensor full(const TensorOptions& options, double value, const TensorOptions& more);

}  // namespace at

namespace torch {
using at::full;
using at::Tensor;
namespace nn {
struct Module {
  virtual ~Module();
};
}  // namespace nn
}  // namespace torch
