#pragma once

// A model with a split classifier, and its samples, for steps of a Trainer or a DataParallel.

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "torch/classes/classifier_cases.h"

namespace tutti::test::classifier_cases::trained {

constexpr std::int64_t kShards = 5;
constexpr std::int64_t kClasses = 40;

struct Net : torch::nn::Module {
  Net(const Group& group, const Options& options)
      : trunk(register_module("trunk", torch::nn::Linear(6, kIn))),
        head(register_module(
            "head",
            ParallelCrossEntropy(group, kIn, kClasses, Sgd{.lr = 0.5, .momentum = 0.9}, options))) {
    const torch::NoGradGuard no_grad;
    trunk->weight.copy_(draw(1, {kIn, 6}, torch::kFloat32));
    trunk->bias.zero_();
  }
  torch::nn::Linear trunk;
  ParallelCrossEntropy head;
};

/// A shard's samples; shard 3 of even steps has none.
inline std::pair<torch::Tensor, torch::Tensor> samples_of(std::int64_t step, std::int64_t shard) {
  const auto rows = shard == 3 && step % 2 == 0 ? 0 : 2 + shard;
  const auto seed = static_cast<std::uint64_t>(100 * step + shard);
  return {draw(seed, {rows, 6}, torch::kFloat32),
          torch::randint(kClasses, {rows}, at::make_generator<at::CPUGeneratorImpl>(seed + 7),
                         torch::TensorOptions(torch::kInt64))};
}

inline ShardAnswer answer_of(Shard& shard, Net& net) {
  const auto [x, y] = samples_of(shard.step(), shard.index());
  if (x.size(0) == 0) return shard.nothing();  // without a call of the head
  return shard.loss(net.head->forward(net.trunk->forward(x), y), static_cast<double>(x.size(0)));
}

/// The same model in one process, by libtorch, with the parameters that `net` has now.
struct DenseTwin {
  explicit DenseTwin(Net& net) : dense(whole(net.head, torch::kFloat32).clone().requires_grad_()) {
    copy_parameters(*net.trunk, *trunk);
  }
  torch::Tensor losses(const torch::Tensor& x, const torch::Tensor& y) {
    return dense_losses(trunk->forward(x), dense, y, {});
  }
  std::vector<torch::Tensor> parameters() const {
    auto all = trunk->parameters();
    all.push_back(dense);
    return all;
  }
  void backward(const torch::Tensor& loss) {
    of_trunk.zero_grad();
    of_head.zero_grad();
    loss.backward();
  }
  void step() {
    of_trunk.step();
    of_head.step();
  }
  /// Collective.
  void expect_near_to(Net& net) const {
    expect_near(net.trunk->weight.detach(), trunk->weight.detach(), 1e-5, "trunk");
    expect_near(whole(net.head, torch::kFloat32), dense.detach(), 1e-5, "head");
  }

  torch::nn::Linear trunk{6, kIn};
  torch::Tensor dense;  ///< the head's weights
  torch::optim::SGD of_trunk{trunk->parameters(), torch::optim::SGDOptions(0.1)};
  torch::optim::SGD of_head{{dense}, torch::optim::SGDOptions(0.5).momentum(0.9)};
};

}  // namespace tutti::test::classifier_cases::trained
