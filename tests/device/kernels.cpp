// Operators that the CPU lacks, or has in another way than a GPU.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "device/launch.h"

namespace tutti::test_device {
namespace {

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool is_transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const auto kernel = [=, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                       output_padding = output_padding.vec()](const Tensors& in,
                                                              const at::Generator&) {
    return Tensors{at::convolution(in[0], in[1], optional_of(in[2]), stride, padding, dilation,
                                   is_transposed, output_padding, groups)};
  };
  return launch(kernel, {x, weight, bias.value_or(at::Tensor())}, x.device().index())[0];
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool is_transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  const auto kernel = [=, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                       output_padding = output_padding.vec()](const Tensors& in,
                                                              const at::Generator&) {
    const std::array<std::int64_t, 1> biases{in[2].size(is_transposed ? 1 : 0) *
                                             (is_transposed ? groups : 1)};
    const auto [of_x, of_weight, of_bias] =
        at::convolution_backward(in[0], in[1], in[2], at::IntArrayRef(biases), stride, padding,
                                 dilation, is_transposed, output_padding, groups, wanted);
    return Tensors{of_x, of_weight, of_bias};
  };
  const auto all = launch(kernel, {gradient, x, weight}, x.device().index());
  return {all[0], all[1], all[2]};
}

template <class Real>
at::Tensor ieee_root_as(const at::Tensor& tensor) {
  const auto from = tensor.contiguous();
  auto roots = at::empty_like(from);
  const auto* const x = from.const_data_ptr<Real>();
  auto* const y = roots.mutable_data_ptr<Real>();
  for (std::int64_t i = 0; i < from.numel(); ++i) y[i] = std::sqrt(x[i]);
  return roots;
}

/// As IEEE has it and CUDA gives it. MKL's, which is the CPU's, differs in a seventh of all floats.
at::Tensor ieee_root(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kDouble) return ieee_root_as<double>(tensor);
  const auto type = tensor.is_floating_point() ? tensor.scalar_type() : at::kFloat;
  return ieee_root_as<float>(tensor.to(at::kFloat)).to(type);
}

at::Tensor square_root(const at::Tensor& tensor) {
  count_own();
  const auto kernel = [](const Tensors& in, const at::Generator&) {
    return Tensors{ieee_root(in[0])};
  };
  return launch(kernel, {tensor}, tensor.device().index())[0];
}
at::Tensor& square_root_in_place(at::Tensor& tensor) { return tensor.copy_(square_root(tensor)); }
at::Tensor& square_root_into(const at::Tensor& tensor, at::Tensor& out) {
  return out.resize_(tensor.sizes()).copy_(square_root(tensor));
}

/// The CPU's formula, with the device's generator.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& x, double p,
                                           std::optional<bool> train) {
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  const auto kernel = [p](const Tensors& in, const at::Generator& generator) {
    auto kept = at::empty(in[0].sizes(), in[0].options().dtype(at::kBool));
    kept.bernoulli_(1 - p, generator);
    return Tensors{in[0].mul(kept).mul_(p == 1 ? 0.0 : 1 / (1 - p)), kept};
  };
  const auto device = x.device().index();
  const auto both = launch(kernel, {x}, device, generator_of(device));
  return {both[0], both[1]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("sqrt", square_root);
  library.impl("sqrt_", square_root_in_place);
  library.impl("sqrt.out", square_root_into);
  library.impl("native_dropout", dropout);
}

}  // namespace
}  // namespace tutti::test_device
