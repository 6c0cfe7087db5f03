// Steps of a DataParallel whose model is on a device: the CPU's bytes, whichever streams are late.

#include <algorithm>
#include <numeric>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_steps_cases {
namespace {

using test_device::Held;
using ::testing::HasSubstr;
namespace nn = torch::nn;

/// What a model is, and its loss of some rows of a batch that all workers know.
struct Images : nn::Module {
  nn::Conv2d conv{register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 4, 3)))};
  nn::BatchNorm2d norm{register_module("norm", nn::BatchNorm2d(4))};
  nn::Linear last{register_module("last", nn::Linear(4 * 6 * 6, 5))};
  nn::Linear never{register_module("never", nn::Linear(3, 3))};
  torch::Tensor loss(std::uint64_t seed, std::int64_t begin, std::int64_t end, c10::Device where) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto x = torch::randn({12, 1, 8, 8}, generator).slice(0, begin, end).to(where);
    const auto y = torch::randint(5, {12}, generator).slice(0, begin, end).to(where);
    return torch::cross_entropy_loss(last(torch::relu(norm(conv(x))).flatten(1)), y);
  }
};

struct Numbers : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(6, 17))};
  nn::Linear second{register_module("second", nn::Linear(17, 3))};
  nn::Linear never{register_module("never", nn::Linear(3, 3))};
  torch::Tensor loss(std::uint64_t seed, std::int64_t begin, std::int64_t end, c10::Device where) {
    const Batch batch(12, seed);
    const auto x = batch.x.slice(0, begin, end).to(where);
    return torch::mse_loss(second(torch::tanh(first(x))), batch.y.slice(0, begin, end).to(where));
  }
};

/// Bytes of parameters, buffers and of all gradients of the last step.
template <class Model>
std::string state_of(const Model& model) {
  std::string bytes;
  const auto add = [&](const torch::Tensor& tensor) {
    const auto host = tensor.defined() ? tensor.detach().cpu().contiguous() : torch::zeros({1});
    bytes.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  };
  for (const auto& parameter : model.parameters()) {
    add(parameter);
    add(parameter.grad());
  }
  for (const auto& buffer : model.buffers()) add(buffer);
  return bytes;
}

struct Run {
  bool drops_gradients = true;  ///< zero_grad()
  bool in_leaves = false;       ///< six micro-batches, whoever computes them
  bool weighted = false;        ///< as unequal shares are
};

template <class Model>
std::string trained(const Job& job, c10::Device where, const Run& run) {
  torch::manual_seed(static_cast<std::uint64_t>(job.rank()) + 1);  // rank 0's counts
  Model model;
  model.to(where);
  DataParallel parallel(job, model);
  auto sgd = momentum_and_decay(model.parameters());
  for (std::uint64_t step = 1; step <= 4; ++step) {
    model.zero_grad(run.drops_gradients);
    if (run.in_leaves) {
      const auto [begin, end] = share_of(6, job.rank(), job.size());
      auto scope = parallel.accumulate({.micro_batches = end - begin});
      for (auto leaf = begin; leaf < end; ++leaf) {
        scope.micro_batch(1, [&] { return model.loss(step, 2 * leaf, 2 * leaf + 2, where); });
      }
      scope.finish();
    } else {
      auto [begin, end] = share_of(run.weighted ? 11 : 12, job.rank(), job.size());
      if (run.weighted) parallel.next_weight(static_cast<double>(end - begin));
      model.loss(step, begin, end, where).backward();
    }
    sgd.step();
  }
  expect_equal_everywhere(parallel.group(), model);
  return state_of(model);
}

template <class Model>
void expect_bytes_of_the_cpu(const Run& run) {
  std::string of_one;
  for (const int size : {1, 2, 3}) {
    const auto cpu =
        text_of_rank_0(size, [&](const Job& job) { return trained<Model>(job, torch::kCPU, run); });
    for (const auto held : kProfiles) {
      const auto device = text_on_device_rank_0(size, held, [&](const Job& job) {
        const auto before = test_device::counters();
        auto bytes = trained<Model>(job, kDevice, run);
        EXPECT_EQ(test_device::counters().unpinned, before.unpinned);
        return bytes;
      });
      EXPECT_FALSE(device.empty());
      EXPECT_TRUE(device == cpu) << size << " workers, profile " << static_cast<int>(held);
    }
    if (run.in_leaves && size == 1) of_one = cpu;
    if (run.in_leaves) {
      EXPECT_TRUE(cpu == of_one) << size;
    }
  }
}

TEST(DeviceSteps, HaveTheBytesOfTheCpu) { expect_bytes_of_the_cpu<Numbers>({}); }
TEST(DeviceSteps, WithGradientsZeroedInPlaceToo) {
  expect_bytes_of_the_cpu<Numbers>({.drops_gradients = false});
}
TEST(DeviceSteps, OfUnequalSharesToo) { expect_bytes_of_the_cpu<Numbers>({.weighted = true}); }
TEST(DeviceSteps, OfMicroBatchesToo) { expect_bytes_of_the_cpu<Numbers>({.in_leaves = true}); }
TEST(DeviceSteps, OfModelsWithBuffersToo) { expect_bytes_of_the_cpu<Images>({}); }

}  // namespace
}  // namespace tutti::test::device_steps_cases
