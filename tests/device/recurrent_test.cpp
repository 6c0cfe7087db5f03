// LSTM and GRU run by the fused cells that libtorch has for devices. One cell without biases gives
// the CPU's bytes. Whole layers do not: the CPU adds biases inside its products and multiplies all
// time steps' inputs at once; there, they agree to a few units of float64.

#include <tuple>

#include "device/device_fixture.h"

namespace tutti::test_device {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;

/// What a module gives for two sequences, the loss of which is squared, and its gradients.
template <class Module, class Forward>
Tensors results(Module& module, c10::Device where, const Tensor& input, const Forward& forward) {
  module->to(where, torch::kDouble);
  module->zero_grad();
  auto x = input.to(where).detach().requires_grad_();
  const auto out = forward(module, x);
  out.square().sum().backward();
  Tensors all{out, x.grad()};
  for (const auto& parameter : module->parameters()) all.push_back(parameter.grad());
  return all;
}

class DeviceRecurrent : public DeviceTest {
 protected:
  /// The device's, the same bytes in both profiles and each time.
  template <class Module, class Forward>
  static Tensors on_device(Module& module, const Tensor& input, const Forward& forward) {
    const auto first = results(module, device(), input, forward);
    const auto expected = bytes_of(first);
    for (const auto held : kProfiles) {
      hold(held);
      const auto waited = counters().waited;
      const auto again = results(module, device(), input, forward);
      EXPECT_EQ(counters().waited, waited);
      EXPECT_TRUE(bytes_of(again) == expected);
    }
    return first;
  }
  template <class Module, class Forward>
  static void expect_bytes_of_cpu(Module module, const Tensor& input, const Forward& forward) {
    const auto expected = bytes_of(results(module, torch::kCPU, input, forward));
    EXPECT_TRUE(bytes_of(on_device(module, input, forward)) == expected);
  }
  template <class Module, class Forward>
  static void expect_close_to_cpu(Module module, const Tensor& input, const Forward& forward) {
    const auto expected = results(module, torch::kCPU, input, forward);
    const auto here = on_device(module, input, forward);
    ASSERT_EQ(here.size(), expected.size());
    for (std::size_t k = 0; k < here.size(); ++k) {
      EXPECT_TRUE(here[k].cpu().allclose(expected[k], 1e-12, 1e-12)) << k;
    }
  }
};

TEST_F(DeviceRecurrent, lstm_cell_without_biases_gives_the_bytes_of_the_cpu) {
  torch::manual_seed(1);
  expect_bytes_of_cpu(nn::LSTMCell(nn::LSTMCellOptions(5, 7).bias(false)),
                      torch::randn({2, 3, 5}, torch::kDouble), [](auto& cell, const Tensor& x) {
                        const auto state = cell(x[0]);
                        const auto [h, c] = cell(x[1], state);
                        return h + c;
                      });
}

TEST_F(DeviceRecurrent, gru_cell_without_biases_gives_the_bytes_of_the_cpu) {
  torch::manual_seed(2);
  expect_bytes_of_cpu(nn::GRUCell(nn::GRUCellOptions(5, 7).bias(false)),
                      torch::randn({2, 3, 5}, torch::kDouble),
                      [](auto& cell, const Tensor& x) { return cell(x[1], cell(x[0])); });
}

const auto kWhole = [](auto& layers, const Tensor& x) { return std::get<0>(layers(x)); };

TEST_F(DeviceRecurrent, lstm_of_two_layers_agrees_with_the_cpu) {
  torch::manual_seed(3);
  expect_close_to_cpu(nn::LSTM(nn::LSTMOptions(5, 7).num_layers(2)),
                      torch::randn({6, 3, 5}, torch::kDouble), kWhole);
}

TEST_F(DeviceRecurrent, gru_in_both_directions_agrees_with_the_cpu) {
  torch::manual_seed(4);
  expect_close_to_cpu(nn::GRU(nn::GRUOptions(5, 7).bidirectional(true)),
                      torch::randn({6, 3, 5}, torch::kDouble), kWhole);
}

}  // namespace
}  // namespace tutti::test_device
