// The fused cells of LSTM and GRU, which libtorch calls on devices alone. Gates are rows of
// `hidden` columns each, in the order of torch::nn::LSTM and GRU; without biases the numbers are
// those of the CPU's formula and of its derivative.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "device/launch.h"

namespace tutti::test_device {
namespace {

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Five = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const at::Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}
at::Tensor or_zeros(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.defined() ? gradient : at::zeros_like(like);
}

/// c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), and the gates i f g o for the derivative.
Tensors lstm_forward(const Tensors& in, const at::Generator&) {
  const auto gates = with_bias(with_bias(in[0] + in[1], in[3]), in[4]).chunk(4, 1);
  const auto i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(),
             o = gates[3].sigmoid();
  const auto c = (f * in[2]).add_(i * g);
  return {o * c.tanh(), c, at::cat({i, f, g, o}, 1)};
}

Tensors lstm_backward(const Tensors& in, const at::Generator&) {
  const auto& before = in[2];
  const auto& after = in[3];
  const auto of_h = or_zeros(in[0], after);
  const auto gates = in[4].chunk(4, 1);
  const auto &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const auto squashed = after.tanh();
  const auto of_c = or_zeros(in[1], after) + at::tanh_backward(of_h * o, squashed);
  return {at::cat({at::sigmoid_backward(of_c * g, i), at::sigmoid_backward(of_c * before, f),
                   at::tanh_backward(of_c * i, g), at::sigmoid_backward(of_h * squashed, o)},
                  1),
          of_c * f};
}

/// n = tanh(x_n + σ(r) h_n), h' = (h − n) σ(z) + n, and r z n h h_n for the derivative.
Tensors gru_forward(const Tensors& in, const at::Generator&) {
  const auto from_x = with_bias(in[0], in[3]).chunk(3, 1);
  const auto from_h = with_bias(in[1], in[4]).clone().chunk(3, 1);
  const auto r =
      from_h[0].add_(from_x[0]).sigmoid();  // strided, as on the CPU: other bits where dense
  const auto z = from_h[1].add_(from_x[1]).sigmoid();
  const auto n = (from_x[2] + from_h[2] * r).tanh();
  return {(in[2] - n).mul_(z).add_(n), at::cat({r, z, n, in[2], from_h[2]}, 1)};
}

Tensors gru_backward(const Tensors& in, const at::Generator&) {
  const auto& of_h = in[0];
  const auto saved = in[1].chunk(5, 1);
  const auto &r = saved[0], &z = saved[1], &n = saved[2], &before = saved[3], &h_n = saved[4];
  const auto through_z = of_h * z;
  const auto to_z = at::sigmoid_backward(of_h * (before - n), z);
  const auto to_n = at::tanh_backward(of_h - through_z, n);
  const auto to_r = at::sigmoid_backward(to_n * h_n, r);
  return {at::cat({to_r, to_z, to_n}, 1), at::cat({to_r, to_z, to_n * r}, 1), through_z};
}

Three lstm_cell(const at::Tensor& from_x, const at::Tensor& from_h, const at::Tensor& c,
                const Optional& x_bias, const Optional& h_bias) {
  count_own();
  const Tensors in{from_x, from_h, c, x_bias.value_or(at::Tensor()), h_bias.value_or(at::Tensor())};
  const auto out = launch(lstm_forward, in, c.device().index());
  return {out[0], out[1], out[2]};
}

/// Gradients of the gates, of c, and of each of the two biases.
Three lstm_cell_backward(const Optional& of_h, const Optional& of_c, const at::Tensor& before,
                         const at::Tensor& after, const at::Tensor& gates, bool has_bias) {
  const Tensors in{of_h.value_or(at::Tensor()), of_c.value_or(at::Tensor()), before, after, gates};
  const auto out = launch(lstm_backward, in, after.device().index());
  return {out[0], out[1], has_bias ? out[0].sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& from_x, const at::Tensor& from_h,
                                            const at::Tensor& h, const Optional& x_bias,
                                            const Optional& h_bias) {
  count_own();
  const Tensors in{from_x, from_h, h, x_bias.value_or(at::Tensor()), h_bias.value_or(at::Tensor())};
  const auto out = launch(gru_forward, in, h.device().index());
  return {out[0], out[1]};
}

Five gru_cell_backward(const at::Tensor& of_h, const at::Tensor& saved, bool has_bias) {
  const auto out = launch(gru_backward, {of_h, saved}, of_h.device().index());
  const auto bias = [&](const at::Tensor& gates) { return has_bias ? gates.sum(0) : at::Tensor(); };
  return {out[0], out[1], out[2], bias(out[0]), bias(out[1])};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace
}  // namespace tutti::test_device
