// Sums on their way to a model on a device while backward runs, and those of one worker, which
// stay.

#include <array>
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "device_parallel/device_workers.h"
#include "support/running_command.h"
#include "support/shared_between_processes.h"

namespace tutti::test::device_sums_cases {
namespace {

namespace nn = torch::nn;

// Buckets of one parameter: sums leave while gradients come, over slots that both use.
std::string trained_in_small_buckets(const Job& job, c10::Device where) {
  torch::manual_seed(1);
  nn::Sequential model;
  for (int k = 0; k < 6; ++k) model->push_back(nn::Linear(24, 24));
  model->to(where);
  DataParallel parallel(job, *model, {.fusion = 1, .first_fusion = 1, .desync_check_every = 2});
  auto sgd = momentum_and_decay(model->parameters());
  std::vector<torch::Tensor> kept;
  const auto [begin, end] = share_of(12, job.rank(), job.size());
  for (std::uint64_t step = 1; step <= 8; ++step) {
    model->zero_grad(step % 3 != 0);
    const auto x = torch::randn({12, 24}, at::make_generator<at::CPUGeneratorImpl>(step));
    const auto loss = [&] {
      return model->forward(x.slice(0, begin, end).to(where)).square().mean();
    };
    if (step == 4 && job.rank() == job.size() - 1) {
      parallel.synchronize();
    } else if (step == 6) {
      auto scope = parallel.accumulate();
      scope.micro_batch(1, loss);
      scope.micro_batch(2, loss);
      scope.finish();
    } else {
      loss().backward();
    }
    if (step == 5) kept.push_back(model->parameters()[3].grad());
    sgd.step();
  }
  auto bytes = state_of(*model);
  for (const auto& gradient : kept) bytes += bytes_of(gradient);
  return bytes;
}

TEST(DeviceSteps, WhoseSumsLeaveWhileBackwardRuns) {
  expect_bytes_of_the_cpu(trained_in_small_buckets);
}
TEST(DeviceSteps, WhoseSumsLeaveByWayOfTheHostsCopies) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    if (!where.is_cpu()) test_device::refuse_registration(true);
    return trained_in_small_buckets(job, where);
  });
}

// promise: gpu#what-it-costs
TEST(DeviceSteps, SumsAreThereBeforeBackwardReachesTheFirstLayer) {
  constexpr int kLayers = 8;
  const SharedBetweenProcesses<std::array<std::atomic<int>, kLayers>> came;
  on_device_workers(2, test_device::Held::kSideStreams, [&](const Job& job) {
    const auto where = local_device(job);
    torch::manual_seed(1);
    nn::Sequential model;
    for (int k = 0; k < kLayers; ++k) {
      model->push_back(nn::Linear(nn::LinearOptions(4, 4).bias(false)));
    }
    model->to(where);
    const auto parameters = model->parameters();
    int step = 0;
    void* last_gradient = nullptr;  // its address stays
    std::string at_first_layer;
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      parameters[layer].register_hook([&, layer](const torch::Tensor& gradient) {
        if (step == 0) return gradient;
        test_device::synchronize();
        ++(*came)[layer];
        comes_true([&] { return (*came)[layer] >= 2; });
        if (layer == 0) {
          at_first_layer = bytes_of(
              torch::from_blob(last_gradient, {4, 4}, torch::TensorOptions().device(where)));
        }
        return gradient;
      });
    }
    DataParallel parallel(job, *model, {.fusion = 1, .first_fusion = 1});
    for (; step < 2; ++step) {
      model->zero_grad(false);
      const auto x = torch::full({3, 4}, 1. + job.rank(), where);
      model->forward(x).square().mean().backward();
      last_gradient = parameters[kLayers - 1].grad().data_ptr();
    }
    EXPECT_EQ(at_first_layer, bytes_of(parameters[kLayers - 1].grad()));
  });
}

// promise: gpu#what-it-costs
TEST(DeviceSteps, OfOneWorkerAndOneBackwardStayOnTheDevice) {
  for (const auto held : kProfiles) {
    on_device_workers(1, held, [](const Job& job) {
      const auto where = local_device(job);
      torch::manual_seed(1);
      Numbers alone;
      alone.to(where);
      torch::manual_seed(1);
      Numbers model;
      model.to(where);
      DataParallel parallel(job, model, {.fusion = 1, .first_fusion = 1});
      const auto by_hand = [&](const Numbers& of) {
        return torch::full_like(of.second->bias, 1.0 / 3);
      };
      for (std::uint64_t step = 1; step <= 7; ++step) {
        for (auto* one : {&alone, &model}) {
          one->zero_grad(step % 2 == 0);
          // A weight multiplies and divides the gradient of one worker by nothing.
          if (step == 2 && one == &model) parallel.next_weight(3);
          if (step == 3) one->second->bias.mutable_grad() = by_hand(*one);
          if (step == 5 && one == &model) {
            auto scope = parallel.accumulate();
            scope.micro_batch(1, [&] { return one->loss(step, 0, 12, where); });
            scope.finish();
            EXPECT_GT(parallel.report().device_bytes, 0u);
          } else {
            one->loss(step, 0, 12, where).backward();
            if (one == &model) {
              EXPECT_EQ(parallel.report().device_bytes, 0u) << step;
            }
          }
        }
        EXPECT_TRUE(state_of(model) == state_of(alone)) << step;
        if (step == 6) {  // dropped, when some sums have left
          for (auto* one : {&alone, &model}) one->zero_grad();
          const auto hook = model.first->weight.register_hook(
              [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("a hook's"); });
          EXPECT_THROW(model.loss(step, 0, 12, where).backward(), std::runtime_error);
          model.first->weight.remove_hook(hook);
        }
        const torch::NoGradGuard no_grad;
        for (auto* one : {&alone, &model}) {
          for (const auto& parameter : one->parameters()) {
            if (parameter.grad().defined()) parameter.sub_(parameter.grad() * 0.125);
          }
        }
      }
    });
  }
}

TEST(DeviceSteps, OfOneWorkerRoundAsTheHostDoes) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    expect_bytes_of_the_cpu([&](const Job& job, c10::Device where) {
      torch::nn::Linear model(8, 8);
      model->to(where, type);
      DataParallel parallel(job, *model);
      const auto x = torch::linspace(-1, 1, 8).to(where, type);
      const torch::Tensor third = torch::full({8, 8}, 1.0 / 3).to(where, type);
      model->weight.mutable_grad() = third;
      (model->weight * x).sum().backward();
      return bytes_of(model->weight.grad());
    });
  }
}

}  // namespace
}  // namespace tutti::test::device_sums_cases
