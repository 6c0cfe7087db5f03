#pragma once

// A model some of whose layers are split, for the tests of DataParallel with such.

#include "torch/split/whole.h"

namespace tutti::test {

/// A split table, a layer that all have, a norm over all samples, and a split classifier. Over a
/// group of one it is the whole.
struct PartlySplitModelImpl : torch::nn::Module {
  static constexpr std::int64_t kWords = 11;
  static constexpr std::int64_t kWidth = 4;
  static constexpr std::int64_t kClasses = 7;

  explicit PartlySplitModelImpl(const Group& group)
      : table(register_module(
            "table", ParallelEmbedding(
                         group,
                         ParallelEmbeddingOptions{
                             .rows = kWords, .dim = kWidth, .seed = 3, .dtype = torch::kFloat64}))),
        middle(register_module("middle", torch::nn::Linear(kWidth, kWidth + 1))),
        norm(
            register_module("norm", SyncBatchNorm(group, torch::nn::BatchNormOptions(kWidth + 1)))),
        head(register_module(
            "head", ParallelLinear(group, ParallelLinearOptions{.features = kWidth + 1,
                                                                .classes = kClasses,
                                                                .seed = 4,
                                                                .dtype = torch::kFloat64}))) {
    middle->to(torch::kFloat64);
    norm->to(torch::kFloat64);
    const torch::NoGradGuard off;
    // Only rank 0's counts: others begin elsewhere.
    middle->weight.copy_(drawn(static_cast<std::uint64_t>(5 + group.rank()), {kWidth + 1, kWidth}));
    middle->bias.zero_();
  }
  torch::Tensor forward(const torch::Tensor& words) {
    return head->logits(norm->forward(middle->forward(table->forward(words))).tanh());
  }
  /// The mean over these samples; of none it is NaN, and has a weight of 0.
  torch::Tensor loss(const torch::Tensor& words, const torch::Tensor& labels) {
    return torch::nll_loss(torch::log_softmax(forward(words), 1), labels);
  }
  ParallelEmbedding table;
  torch::nn::Linear middle;
  SyncBatchNorm norm;
  ParallelLinear head;
};
TORCH_MODULE(PartlySplitModel);

/// What such a model is trained with.
struct WordSamples {
  torch::Tensor words, labels;
  WordSamples(std::uint64_t seed, std::int64_t rows)
      : words(drawn_labels(100 + seed, PartlySplitModelImpl::kWords, {rows})),
        labels(drawn_labels(200 + seed, PartlySplitModelImpl::kClasses, {rows})) {}
};

inline constexpr double kSplitRate = 0.1;

}  // namespace tutti::test
