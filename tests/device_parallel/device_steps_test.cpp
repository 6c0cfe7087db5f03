// Steps of a DataParallel whose model is on a device: the CPU's bytes, whichever streams are late.

#include <algorithm>
#include <numeric>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_steps_cases {
namespace {

using test_device::Held;
using ::testing::HasSubstr;
namespace nn = torch::nn;

/// As Numbers, with buffers.
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
  test::expect_bytes_of_the_cpu(
      [&](const Job& job, c10::Device where) { return trained<Model>(job, where, run); });
}

TEST(DeviceSteps, HaveTheBytesOfTheCpu) { expect_bytes_of_the_cpu<Numbers>({}); }
TEST(DeviceSteps, WithGradientsZeroedInPlaceToo) {
  expect_bytes_of_the_cpu<Numbers>({.drops_gradients = false});
}
TEST(DeviceSteps, OfUnequalSharesToo) { expect_bytes_of_the_cpu<Numbers>({.weighted = true}); }
TEST(DeviceSteps, OfModelsWithBuffersToo) { expect_bytes_of_the_cpu<Images>({}); }
TEST(DeviceSteps, OfMicroBatchesToo) {
  expect_bytes_of_the_cpu<Numbers>({.in_leaves = true});
  const auto of = [](int size) {
    return text_of_rank_0(size, [](const Job& job) {
      return trained<Numbers>(job, torch::kCPU, {.in_leaves = true});
    });
  };
  const auto of_one = of(1);
  for (const int size : {2, 3}) EXPECT_TRUE(of(size) == of_one) << size;
}

/// In each step another part of the workers has a gradient, and the last step's sums may be late.
std::string trained_by_turns(const Job& job, c10::Device where) {
  torch::manual_seed(1);
  Numbers model;
  model.to(where);
  DataParallel parallel(job, model, {.desync_check_every = 0});
  auto sgd = momentum_and_decay(model.parameters());
  for (std::uint64_t step = 1; step <= 8; ++step) {
    model.zero_grad();
    if (step % static_cast<std::uint64_t>(job.size()) == static_cast<std::uint64_t>(job.rank())) {
      model.loss(step, 0, 6, where).backward();
    } else {
      parallel.synchronize();
    }
    sgd.step();
  }
  return state_of(model);
}

TEST(DeviceSteps, InWhichSomeHaveNoGradientToo) { test::expect_bytes_of_the_cpu(trained_by_turns); }

/// Gradients that the program keeps, sets by hand, and changes before its update; a step that a
/// worker gives up; parameters that are frozen for a while.
std::string trained_by_hand(const Job& job, c10::Device where) {
  torch::manual_seed(1);
  Numbers model;
  model.to(where);
  DataParallel parallel(job, model);
  auto sgd = momentum_and_decay(model.parameters());
  std::vector<torch::Tensor> kept;
  const auto [begin, end] = share_of(12, job.rank(), job.size());
  for (std::uint64_t step = 1; step <= 6; ++step) {
    model.zero_grad(step % 2 == 0);
    model.first->bias.requires_grad_(step != 3);
    if (step == 2) {
      if (job.rank() == 0) parallel.fail("a bad batch");
      if (job.rank() != 0) {
        EXPECT_THROW(model.loss(step, begin, end, where).backward(), PeerFailed);
      }
      model.zero_grad();
    }
    if (step == 4) {
      model.second->bias.mutable_grad() =
          torch::full({3}, static_cast<float>(job.rank()), torch::TensorOptions(where)) / 3;
    }
    model.loss(step, begin, end, where).backward();
    for (const auto& parameter : model.parameters()) {
      if (!parameter.grad().defined()) continue;
      if (step < 5) kept.push_back(parameter.grad());
      if (step == 5) parameter.grad().mul_(0.5);
    }
    sgd.step();
  }
  auto bytes = state_of(model);
  for (const auto& gradient : kept) bytes += bytes_of(gradient);
  return bytes;
}

TEST(DeviceSteps, OfProgramsThatKeepAndChangeGradientsToo) {
  test::expect_bytes_of_the_cpu(trained_by_hand);
}

/// Types side by side, of a model that draws.
std::string drawn(const Job& job, c10::Device where) {
  torch::manual_seed(1);
  nn::Linear wide(nn::LinearOptions(4, 8));
  nn::Linear narrow(nn::LinearOptions(8, 3));
  nn::Sequential model(wide, narrow);
  model->to(where);
  wide->to(torch::kFloat64);
  narrow->to(torch::kBFloat16);
  DataParallel parallel(job, *model);
  torch::manual_seed(static_cast<std::uint64_t>(job.rank()) + 7);  // each its own draws
  const auto own = torch::rand({2}, where).cpu();
  torch::manual_seed(static_cast<std::uint64_t>(job.rank()) + 7);
  const auto [begin, end] = share_of(6, job.rank(), job.size());
  auto scope = parallel.accumulate({.micro_batches = end - begin, .seed = 3});
  for (auto leaf = begin; leaf < end; ++leaf) {
    scope.micro_batch(1, [&] {
      const auto x = torch::rand({5, 4}, where).to(torch::kFloat64);
      return narrow->forward(torch::dropout(wide->forward(x), 0.5, true).to(torch::kBFloat16))
          .to(torch::kFloat32)
          .square()
          .sum();
    });
  }
  scope.finish();
  EXPECT_TRUE(torch::rand({2}, where).cpu().equal(own)) << "the program draws what it would have";
  return state_of(*model);
}

TEST(DeviceSteps, OfSeededMicroBatchesToo) {
  std::string of_one;
  for (const int size : {1, 2, 3}) {
    for (const auto held : kProfiles) {
      const auto device = text_on_device_rank_0(
          size, held, [](const Job& job) { return drawn(job, local_device(job)); });
      if (of_one.empty()) of_one = device;
      EXPECT_FALSE(device.empty());
      EXPECT_TRUE(device == of_one) << size;
    }
  }
  EXPECT_TRUE(of_one == text_of_rank_0(1, [](const Job& job) { return drawn(job, torch::kCPU); }));
}

/// Statistics of all workers' samples.
std::string normalised(const Job& job, c10::Device where) {
  torch::manual_seed(1);
  const Group group(job, "norm");
  nn::Linear linear(6, 4);
  SyncBatchNorm norm(group, nn::BatchNormOptions(4));
  nn::Sequential model(linear, norm);
  model->to(where);
  DataParallel parallel(job, *model);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    model->zero_grad();
    const Batch batch(12, step);
    const auto [begin, end] = share_of(12, job.rank(), job.size());
    const auto y = model->forward(batch.x.slice(0, begin, end).to(where));
    (y * y * y).mean().backward();
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model->parameters()) parameter.sub_(parameter.grad() * 0.125);
  }
  const auto mean = parallel.mean(torch::ones({2}, torch::TensorOptions(where)) * job.rank());
  EXPECT_EQ(mean.device(), where);
  EXPECT_EQ(mean[0].item<float>(), static_cast<float>(job.size() - 1) / 2);
  return state_of(*model);
}

TEST(DeviceSteps, WithStatisticsOfAllSamplesToo) { test::expect_bytes_of_the_cpu(normalised); }

// promise: step_report.h#zero_copy_gradients
TEST(DeviceSteps, HaveTheirGradientsCopiedToWhereTheyAreFolded) {
  for (const auto held : kProfiles) {
    on_device_workers(2, held, [](const Job& job) {
      const auto trained = [&](bool is_refused) {
        test_device::refuse_registration(is_refused);
        torch::manual_seed(1);
        Numbers model;
        model.to(local_device(job));
        DataParallel parallel(job, model);
        torch::optim::SGD optimizer(model.parameters(), 0.125);
        for (std::uint64_t step = 1; step <= 4; ++step) {
          const auto before = test_device::counters().unpinned;
          model.zero_grad();
          model.loss(step, 0, 6 + job.rank(), local_device(job)).backward();
          EXPECT_EQ(test_device::counters().unpinned, before);
          EXPECT_EQ(parallel.report().zero_copy_gradients, is_refused ? 0 : 4);
          optimizer.step();
        }
        return state_of(model);
      };
      const auto usual = trained(false);
      EXPECT_GT(usual.size(), 0u);
      EXPECT_EQ(trained(true), usual);
    });
  }
}

// One micro-batch after another comes to slots that are free again, or to more of them.
TEST(DeviceSteps, OfManyMicroBatchesHaveThemThereToo) {
  on_device_workers(3, Held::kDefaultStreams, [](const Job& job) {
    const auto where = local_device(job);
    torch::nn::Linear model(6, 40);
    model->to(where);
    DataParallel parallel(job, *model);
    for (int step = 1; step <= 3; ++step) {
      model->zero_grad();
      auto scope = parallel.accumulate({.micro_batches = 5 + job.rank()});
      for (int k = 1; k <= 5 + job.rank(); ++k) {
        scope.micro_batch(1, [&] {
          return model->forward(torch::full({2, 6}, k * 1.0F).to(where)).sum();
        });
      }
      scope.finish();
      float sum = 0;
      for (int n = 0; n < 3; ++n) {
        for (int k = 1; k <= 5 + n; ++k) sum += 2 * static_cast<float>(k);
      }
      const auto grad = model->weight.grad().cpu() * 18;  // micro-batches
      EXPECT_TRUE(torch::allclose(grad, torch::full({40, 6}, sum))) << grad[0][0];
      if (step == 3) {
        EXPECT_GT(parallel.report().zero_copy_gradients, 2);
      }
    }
  });
}

TEST(DeviceSteps, AreReportedWithWhatTheDeviceCosts) {
  on_device_workers(2, Held::kSideStreams, [](const Job& job) {
    Numbers model;
    model.to(local_device(job));
    DataParallel parallel(job, model);
    std::size_t bytes = 0;
    for (const auto& layer : {model.first, model.second}) {
      bytes += layer->weight.nbytes() + layer->bias.nbytes();
    }
    for (std::uint64_t step = 1; step <= 3; ++step) {
      model.zero_grad();
      model.loss(step, 0, 6 + job.rank(), local_device(job)).backward();
    }
    // Digests of parameters are compared in steps 1, 2 and 4.
    EXPECT_EQ(parallel.report().device_bytes, 2 * bytes);
    EXPECT_GT(parallel.report().device_wait_seconds, 0);
    EXPECT_THAT(parallel.report().text(), HasSubstr(" MB to and from the device, "));
    model.zero_grad();
    for (int step = 4; step <= 5; ++step) parallel.synchronize();
    EXPECT_EQ(parallel.report().device_bytes, 0u) << "of what nobody has written";
  });
}

}  // namespace
}  // namespace tutti::test::device_steps_cases
