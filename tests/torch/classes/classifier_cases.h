#pragma once

// Batches for a split classifier, and the dense computation by libtorch.

#include <torch/torch.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "torch/training.h"
#include "tutti/parallel_cross_entropy.h"

namespace tutti::test::classifier_cases {
using Options = ParallelCrossEntropyOptions;
namespace nn = torch::nn::functional;

constexpr std::int64_t kIn = 5;

inline std::string name_of_case(const Options& options, std::int64_t classes, int size) {
  std::ostringstream text;
  text << classes << " classes, " << size << " workers, smoothing " << options.label_smoothing
       << (options.margin ? ", margin" : "") << ", rate " << options.sample_rate << ", "
       << options.dtype;
  return text.str();
}

inline torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes, torch::ScalarType type) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), torch::kFloat64)
      .to(type);
}

/// A batch of all workers: each has another number of samples, the second none.
struct Samples {
  torch::Tensor features, labels;
  std::vector<std::int64_t> begins;

  Samples(int size, std::int64_t classes, std::uint64_t seed, torch::ScalarType type) {
    begins.push_back(0);
    for (int r = 0; r < size; ++r) begins.push_back(begins.back() + (r == 1 ? 0 : 3 + r % 3));
    features = draw(seed, {begins.back(), kIn}, type);
    labels =
        torch::randint(classes, {begins.back()}, at::make_generator<at::CPUGeneratorImpl>(seed + 1),
                       torch::TensorOptions(torch::kInt64));
  }
  /// The same samples, one after another, for any number of workers.
  static Samples shared(int size, std::int64_t classes, std::uint64_t seed,
                        torch::ScalarType type) {
    Samples all(1, classes, seed, type);
    all.features = draw(seed, {13, kIn}, type);
    all.labels = torch::randint(classes, {13}, at::make_generator<at::CPUGeneratorImpl>(seed + 1),
                                torch::TensorOptions(torch::kInt64));
    all.begins.clear();
    for (int r = 0; r < size; ++r) all.begins.push_back(share_of(13, r, size).first);
    all.begins.push_back(13);
    return all;
  }
  torch::Tensor of(const torch::Tensor& all, int rank) const {
    return all.slice(0, begins[static_cast<std::size_t>(rank)],
                     begins[static_cast<std::size_t>(rank) + 1]);
  }
};

/// The whole weights, or a state, on every member.
inline torch::Tensor whole(ParallelCrossEntropy head, torch::ScalarType type,
                           const std::string& name = "weight") {
  std::vector<torch::Tensor> own{torch::zeros({0, head->features()}, type)};
  for (const auto& part : head->split_tensors()) {
    if (part.name == name) own.push_back(part.rows);
  }
  return all_gather_variable(head->group(), torch::cat(own));
}

/// Losses of all samples, by libtorch.
inline torch::Tensor dense_losses(const torch::Tensor& features, const torch::Tensor& weights,
                                  const torch::Tensor& labels, const Options& options) {
  auto logits = features.matmul(weights.t());
  if (options.margin) {
    const auto& [m1, m2, m3, scale] = *options.margin;
    const auto cosines = nn::normalize(features).matmul(nn::normalize(weights).t());
    const auto own = (torch::arccos(cosines.clamp(-1 + 1e-7, 1 - 1e-7)) * m1 + m2).cos() - m3;
    const auto is_own = torch::one_hot(labels.clamp_min(0), weights.size(0)).to(torch::kBool);
    logits = torch::where(is_own, own, cosines) * scale;
  }
  return nn::cross_entropy(logits, labels,
                           nn::CrossEntropyFuncOptions()
                               .reduction(torch::kNone)
                               .ignore_index(options.ignore_index)
                               .label_smoothing(options.label_smoothing));
}

inline void expect_near(const torch::Tensor& is, const torch::Tensor& wanted, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(is.sizes(), wanted.sizes()) << what;
  if (is.numel() == 0) return;
  const auto scale = 1 + wanted.abs().max().item<double>();
  EXPECT_LE((is - wanted).abs().max().item<double>(), tolerance * scale) << what;
}

}  // namespace tutti::test::classifier_cases
