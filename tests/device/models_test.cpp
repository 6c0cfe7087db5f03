// Modules, losses, optimizers and generators of libtorch run on the test device as on a GPU: with
// the CPU's bytes where the CPU runs the same operators.

#include <functional>
#include <memory>
#include <thread>

#include "device/device_fixture.h"

namespace tutti::test_device {
namespace {

namespace nn = torch::nn;
using at::Tensor;

struct Images : nn::Module {
  nn::Conv2d first{register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 6, 3)))};
  nn::BatchNorm2d norm{register_module("norm", nn::BatchNorm2d(6))};
  nn::ConvTranspose2d second{register_module(
      "second", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 4, 3).groups(2)))};
  nn::Linear last{register_module("last", nn::Linear(4 * 8 * 8, 10))};
  Tensor forward(Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(first(x))), 2);
    return last(torch::relu(second(x)).flatten(1));
  }
};

struct Dropping : nn::Module {
  nn::Linear linear{register_module("linear", nn::Linear(9, 11))};
  nn::Dropout drop{register_module("drop", nn::Dropout(0.5))};
  Tensor forward(const Tensor& x) { return drop(linear(x)); }
};

struct Bags : nn::Module {
  nn::EmbeddingBag bag{
      register_module("bag", nn::EmbeddingBag(nn::EmbeddingBagOptions(20, 8).mode(torch::kSum)))};
  nn::Linear linear{register_module("linear", nn::Linear(8, 10))};
  Tensor forward(const Tensor& x) { return linear(bag(x)); }
};

/// Losses of three steps, gradients of the last, parameters and buffers.
template <class Model>
std::vector<std::string> trained(c10::Device where, const Tensor& input, bool drops_gradients) {
  torch::manual_seed(3);
  Model model;
  model.to(where);
  const auto target = (torch::arange(input.size(0)) % 10).to(where);
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<Tensor> all;
  torch::manual_seed(4);
  for (int step = 0; step < 3; ++step) {
    model.zero_grad(drops_gradients);
    const auto loss = torch::cross_entropy_loss(model.forward(input.to(where)), target);
    loss.backward();
    sgd.step();
    all.push_back(loss);
  }
  for (const auto& parameter : model.parameters()) {
    EXPECT_EQ(parameter.device(), where);
    all.push_back(parameter.grad());
    all.push_back(parameter);
  }
  for (const auto& buffer : model.buffers()) all.push_back(buffer);
  return bytes_of(all);
}

class DeviceModels : public DeviceTest {
 protected:
  template <class Model>
  static void expect_bytes_of_cpu(const Tensor& input) {
    for (const bool drops_gradients : {true, false}) {
      const auto expected = trained<Model>(torch::kCPU, input, drops_gradients);
      for (const auto held : kProfiles) {
        hold(held);
        const auto waited = counters().waited;
        EXPECT_TRUE(trained<Model>(device(), input, drops_gradients) == expected);
        EXPECT_EQ(counters().waited, waited);
      }
    }
  }
};

TEST_F(DeviceModels, convolutions_batch_norm_pool_and_linear) {
  expect_bytes_of_cpu<Images>(torch::randn({5, 1, 14, 14}));
}
TEST_F(DeviceModels, dropout) { expect_bytes_of_cpu<Dropping>(torch::randn({13, 9})); }
TEST_F(DeviceModels, embedding_bag) { expect_bytes_of_cpu<Bags>(torch::randint(20, {6, 5})); }

TEST_F(DeviceModels, one_goes_there_and_back) {
  torch::manual_seed(5);
  nn::Linear linear(3, 4);
  const auto before = bytes_of(linear->parameters());
  linear->to(device());
  linear->to(torch::kDouble);
  linear->to(torch::kFloat);
  linear->to(torch::kCPU);
  EXPECT_TRUE(bytes_of(linear->parameters()) == before);
}

TEST_F(DeviceModels, views_of_windows_and_negated_ones_are_the_tensors_elements) {
  const auto host = torch::arange(12).to(torch::kFloat32).view({3, 4});
  const auto here = host.to(device());
  EXPECT_TRUE(bytes_of(here.unfold(1, 2, 1) * 2) == bytes_of(host.unfold(1, 2, 1) * 2));
  EXPECT_TRUE(bytes_of(at::_neg_view(here)) == bytes_of(-host));
  EXPECT_TRUE(bytes_of(at::_neg_view(here).clone()) == bytes_of(-host));
}

// A mode of a thread, hence one that ends.
TEST_F(DeviceModels, what_is_made_without_a_word_is_made_on_the_default_device) {
  const auto drawn = [] {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
    return torch::randn({3}, generator);
  };
  const auto expected = drawn();
  std::thread([&] {
    make_default(device(1));
    for (const auto& tensor :
         {torch::zeros({3}), torch::arange(3), torch::rand({3}), drawn(), nn::Linear(2, 3)->weight})
      EXPECT_EQ(tensor.device(), device(1));
    EXPECT_TRUE(bytes_of(drawn()) == bytes_of(expected));
    EXPECT_EQ(torch::ones({3}, torch::kCPU).device(), at::kCPU);
    EXPECT_EQ(torch::ones({3}, torch::dtype(torch::kFloat).pinned_memory(true)).device(), at::kCPU);
  }).join();
  EXPECT_EQ(torch::zeros({3}).device(), at::kCPU);
}

TEST_F(DeviceModels, roots_are_those_of_ieee) {
  torch::manual_seed(6);
  const auto host = torch::rand({5001}) * 100;
  auto expected = host.clone();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    expected.mutable_data_ptr<float>()[i] = std::sqrt(host.const_data_ptr<float>()[i]);
  }
  const auto here = host.to(device());
  EXPECT_TRUE(bytes_of(here.sqrt()) == bytes_of(expected));
  EXPECT_TRUE(bytes_of(here.clone().sqrt_()) == bytes_of(expected));
  auto out = torch::empty({0}, device());
  torch::sqrt_out(out, here);
  EXPECT_TRUE(bytes_of(out) == bytes_of(expected));
}

TEST_F(DeviceModels, random_numbers_are_those_of_the_devices_generator) {
  const auto draw = [](c10::Device where) {
    const auto uniform = torch::rand({17}, where);
    return bytes_of(std::vector{uniform, torch::randn({33}, where), torch::randperm(9, where)});
  };
  torch::manual_seed(8);
  const auto expected = draw(torch::kCPU);
  const auto next = draw(torch::kCPU);
  for (const auto held : kProfiles) {
    hold(held);
    torch::manual_seed(8);
    torch::rand({5});  // the CPU's draws are none of the device's
    auto generator = at::globalContext().defaultGenerator(device());
    const auto state = generator.get_state();
    EXPECT_TRUE(draw(device()) == expected);
    EXPECT_TRUE(draw(device()) == next);
    generator.set_state(state);
    EXPECT_TRUE(draw(device()) == expected);
  }
}

TEST_F(DeviceModels, results_whose_sizes_depend_on_values_wait_and_are_counted) {
  hold(Held::kDefaultStreams);
  const auto before = counters().waited;
  const auto places = torch::nonzero(torch::arange(6, device()).remainder(2));
  EXPECT_EQ(counters().waited, before + 1);
  EXPECT_EQ(bytes_of(places), bytes_of(torch::nonzero(torch::arange(6).remainder(2))));
}

}  // namespace
}  // namespace tutti::test_device
