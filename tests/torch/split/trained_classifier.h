#pragma once

// A model with a split classifier, and its samples, for steps of a Trainer or a DataParallel.

#include <torch/torch.h>

#include <cstdint>
#include <utility>

#include "torch/split/classifier_cases.h"

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

}  // namespace tutti::test::classifier_cases::trained
