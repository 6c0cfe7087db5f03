// The split classifier beside the dense computation by libtorch.

#include "tutti/parallel_cross_entropy.h"

#include <sys/resource.h>

#include <cmath>

#include "kernels/hash.h"
#include "support/sanitized.h"
#include "torch/training.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Options = ParallelCrossEntropyOptions;
namespace nn = torch::nn::functional;

constexpr std::int64_t kIn = 5;

std::string name_of_case(const Options& options, std::int64_t classes, int size) {
  std::ostringstream text;
  text << classes << " classes, " << size << " workers, smoothing " << options.label_smoothing
       << (options.margin ? ", margin" : "") << ", rate " << options.sample_rate << ", "
       << options.dtype;
  return text.str();
}

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes, torch::ScalarType type) {
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
torch::Tensor whole(ParallelCrossEntropy& head, torch::ScalarType type,
                    const std::string& name = "weight") {
  std::vector<torch::Tensor> own{torch::zeros({0, head.features()}, type)};
  for (const auto& part : head.split_tensors()) {
    if (part.name == name) own.push_back(part.rows);
  }
  return all_gather_variable(head.group(), torch::cat(own));
}

/// Losses of all samples, by libtorch.
torch::Tensor dense_losses(const torch::Tensor& features, const torch::Tensor& weights,
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

void expect_near(const torch::Tensor& is, const torch::Tensor& wanted, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(is.sizes(), wanted.sizes()) << what;
  if (is.numel() == 0) return;
  const auto scale = 1 + wanted.abs().max().item<double>();
  EXPECT_LE((is - wanted).abs().max().item<double>(), tolerance * scale) << what;
}

/// Three steps beside the dense layer with torch's optimizer.
template <class DenseOptimizer, class DenseOptions, class Rule>
void expect_dense(int size, std::int64_t classes, const Options& options, const Rule& rule,
                  const DenseOptions& dense_options) {
  on_workers(size, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, classes, rule, options);
    const auto what = name_of_case(options, classes, size);
    const double tolerance = options.dtype == torch::kFloat64 ? 1e-6 : 1e-5;
    auto dense = whole(head, options.dtype).clone().requires_grad_();
    DenseOptimizer optimizer({dense}, dense_options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Samples samples(size, classes, 10 * step + 1, options.dtype);
      if (samples.labels.numel() > 2) samples.labels[2] = options.ignore_index;
      auto own = samples.of(samples.features, job.rank()).clone().requires_grad_();
      const auto labels = samples.of(samples.labels, job.rank());
      const auto loss = head.forward(own, labels);
      loss.backward();
      auto all = samples.features.clone().requires_grad_();
      const auto losses = dense_losses(all, dense, samples.labels, options);
      torch::Tensor sum = torch::zeros({}, options.dtype);
      for (int r = 0; r < size; ++r) {
        const auto theirs = samples.of(losses, r);
        const auto counted =
            samples.of(samples.labels, r).ne(options.ignore_index).sum().item<double>();
        const auto mean = counted > 0 ? theirs.sum() / counted : theirs.sum();
        if (r == job.rank()) expect_near(loss.detach(), mean.detach(), tolerance, what);
        sum = sum + mean;
      }
      optimizer.zero_grad();
      sum.backward();
      expect_near(own.grad(), samples.of(all.grad(), job.rank()), tolerance, what);
      optimizer.step();
      head.step();
      expect_near(whole(head, options.dtype), dense.detach(), tolerance, what);
    }
    EXPECT_EQ(head.updates(), 3);
  });
}

TEST(ParallelCrossEntropy, IsTheDenseLayerForAnyNumberOfClassesAndWorkers) {
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const std::int64_t classes : {1, 2, 7, 10, 1000}) {
      for (const auto type : {torch::kFloat64, torch::kFloat32}) {
        expect_dense<torch::optim::SGD>(size, classes, Options{.dtype = type},
                                        Sgd{.lr = 0.3, .momentum = 0.9},
                                        torch::optim::SGDOptions(0.3).momentum(0.9));
      }
    }
  }
}

TEST(ParallelCrossEntropy, MarginsSmoothingAndOtherRulesAreTheDenseOnes) {
  for (const int size : {1, 3}) {
    for (const std::int64_t classes : {2, 10, 300}) {
      for (const auto& margin :
           {std::optional<Margin>{}, std::optional(arc_face(0.5, 16)),
            std::optional(cos_face(0.35, 16)), std::optional(sphere_face(1.35, 16)),
            std::optional(Margin{.m1 = 1.1, .m2 = 0.2, .m3 = 0.1, .scale = 8})}) {
        for (const double smoothing : {0.0, 0.1}) {
          expect_dense<torch::optim::Adam>(
              size, classes,
              Options{.margin = margin, .label_smoothing = smoothing, .dtype = torch::kFloat64},
              Adam{.lr = 0.05}, torch::optim::AdamOptions(0.05));
        }
      }
    }
  }
}

std::string hash_of(const torch::Tensor& tensor) {
  Sha256 hash;
  const auto bytes = tensor.contiguous();
  hash.update(bytes.data_ptr(), bytes.nbytes());
  return hash.hex();
}

/// What a few steps leave, on however many workers.
std::string run_of(int size, std::int64_t classes, const Options& options) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    const auto computed = options.dtype == torch::kBFloat16 ? torch::kFloat32 : options.dtype;
    ParallelCrossEntropy head(group, kIn, classes, Sgd{.lr = 0.3, .momentum = 0.9}, options);
    std::string text;
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (std::uint64_t part = 0; part < 1 + step; ++part) {
        const auto samples = Samples::shared(size, classes, 100 * step + 10 * part + 1, computed);
        auto own = samples.of(samples.features, job.rank()).clone().requires_grad_();
        const auto loss = head.forward(own, samples.of(samples.labels, job.rank()));
        loss.backward();
        text += hash_of(all_gather_variable(group, own.grad())) + " ";
      }
      head.step(1 / (1.0 + static_cast<double>(step)));
    }
    return text + head.sha256();
  });
}

TEST(ParallelCrossEntropy, HasTheSameBytesOnAnyNumberOfWorkers) {
  for (const std::int64_t classes : {7, 1000}) {
    for (const auto& options :
         {Options{}, Options{.margin = arc_face(), .label_smoothing = 0.1},
          Options{.sample_rate = 0.3, .pieces = 7},
          Options{.margin = cos_face(), .label_smoothing = 0.1, .sample_rate = 0.1},
          Options{.sample_rate = 0.5, .dtype = torch::kBFloat16},
          Options{.dtype = torch::kBFloat16}}) {
      auto summed = options;
      summed.reduction = LossReduction::sum;
      const auto alone = run_of(1, classes, summed);
      for (const int size : {2, 3, 5, 8}) {
        EXPECT_EQ(run_of(size, classes, summed), alone) << name_of_case(options, classes, size);
      }
    }
  }
}

}  // namespace
}  // namespace tutti::test::classifier_cases
