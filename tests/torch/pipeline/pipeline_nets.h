#pragma once

// A model with all that a cut into stages has to carry over: a weight that the first and the last
// layer read, a result that later layers read, dropout, batch norms, changes in place, samples of
// uneven weights.

#include <string>
#include <utility>
#include <vector>

#include "torch/training.h"

namespace tutti::test {

inline constexpr std::int64_t kWords = 11;
inline constexpr std::int64_t kInner = 6;

struct StagedNet : torch::nn::Module {
  StagedNet() {
    torch::manual_seed(4);
    embedding = register_module("embedding", torch::nn::Embedding(kWords, kInner));
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i),
          torch::nn::Sequential(torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                                torch::nn::Linear(kInner, 2 * kInner), torch::nn::GELU(),
                                torch::nn::Linear(2 * kInner, kInner), torch::nn::Dropout(0.2))));
      torch::nn::Sequential norm;
      if (i == 1) {
        norm->push_back(torch::nn::BatchNorm1d(kInner));
      } else {
        norm->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kInner})));
      }
      norms.push_back(register_module("norm" + std::to_string(i), norm));
    }
    never = register_parameter("never", torch::ones({3}));
  }
  /// Tensors: the sum so far, and what the embedding gave, which each layer hands through.
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all;
    all.push_back([this](const TensorList& in) -> TensorList {
      const auto first = embedding->forward(in[0]);
      return {first, first};
    });
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      all.push_back([this, i](const TensorList& in) -> TensorList {
        // The last one changes what it is given: no other layer has it.
        const auto own = i == 2 ? in[0] + in[1] : i == 3 ? in[0] : in[0].clone();
        const auto inner = blocks[i]->forward(own);
        const auto sum = in[0] + inner;
        // A third layer that reads the embedding's weight.
        return {norms[i]->forward(i == 1 ? sum + embedding->weight.mean(0) : sum), in[1]};
      });
    }
    all.push_back([this](const TensorList& in) -> TensorList {
      return {torch::nn::functional::linear(in[0] * in[1], embedding->weight)};
    });
    return all;
  }
  torch::nn::Embedding embedding{nullptr};
  std::vector<torch::nn::Sequential> blocks;
  std::vector<torch::nn::Sequential> norms;
  torch::Tensor never;
};

/// Words, and those that follow.
inline std::pair<torch::Tensor, torch::Tensor> words_of(std::int64_t step, std::int64_t shard) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * step + shard));
  const auto words = torch::randint(kWords, {3 + shard % 3, 2}, generator);
  return {words.select(1, 0), words.select(1, 1)};
}

inline ShardAnswer loss_of(Shard& shard, const torch::Tensor& scores, const torch::Tensor& next) {
  shard.metrics().sum("right", (scores.argmax(1) == next).sum().item<double>());
  return shard.loss(torch::nn::functional::cross_entropy(scores, next),
                    static_cast<double>(next.numel()));
}

}  // namespace tutti::test
