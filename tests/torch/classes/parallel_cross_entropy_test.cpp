// The split classifier beside the dense computation by libtorch.

#include "tutti/parallel_cross_entropy.h"

#include <set>

#include "kernels/hash.h"
#include "torch/classes/classifier_cases.h"

namespace tutti::test::classifier_cases {
namespace {

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
      const auto loss = head->forward(own, labels);
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
      head->step();
      expect_near(whole(head, options.dtype), dense.detach(), tolerance, what);
    }
    EXPECT_EQ(head->updates(), 3);
  });
}

// promise: parallel_cross_entropy.h#forward, parallel_cross_entropy.h#ignore_index
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

// promise: parallel_cross_entropy.h#Margin, parallel_cross_entropy.h#margin
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
        const auto loss = head->forward(own, samples.of(samples.labels, job.rank()));
        loss.backward();
        text += hash_of(all_gather_variable(group, own.grad())) + " ";
      }
      head->step(1 / (1.0 + static_cast<double>(step)));
    }
    return text + head->sha256();
  });
}

// promise: parallel_cross_entropy.h#ParallelCrossEntropy, parallel_cross_entropy.h#pieces
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

// promise: parallel_cross_entropy.h#ParallelCrossEntropy, parallel_cross_entropy.h#pieces
TEST(ParallelCrossEntropy, TakesMoreClassesThanOneChunkAndMoreSamplesThanClasses) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    for (const std::int64_t rows : {7, 900}) {
      ParallelCrossEntropy head(group, kIn, 9001, Sgd{.lr = 1},
                                Options{.label_smoothing = 0.1, .pieces = 2});
      auto dense = whole(head, torch::kFloat32).clone().requires_grad_();
      const auto features = draw(3, {2 * rows, kIn}, torch::kFloat32) * 3;
      const auto labels = torch::arange(2 * rows).mul(9001).floor_divide(2 * rows);
      auto all = features.clone().requires_grad_();
      const auto losses = dense_losses(all, dense, labels, Options{.label_smoothing = 0.1});
      losses.sum().backward();
      auto own = features.narrow(0, job.rank() * rows, rows).clone().requires_grad_();
      (head->forward(own, labels.narrow(0, job.rank() * rows, rows)) * rows).backward();
      expect_near(own.grad(), all.grad().narrow(0, job.rank() * rows, rows), 1e-5, "features");
      head->step();
      expect_near(whole(head, torch::kFloat32), (dense - dense.grad()).detach(), 1e-5, "weights");
    }
  });
}

// promise: parallel_cross_entropy.h#label_smoothing, parallel_cross_entropy.h#split_tensors
TEST(ParallelCrossEntropy, WithASampleIsTheDenseLayerOfTheClassesThatTookPart) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    constexpr std::int64_t kClasses = 500;
    const Options options{.label_smoothing = 0.1, .sample_rate = 0.2, .dtype = torch::kFloat64};
    ParallelCrossEntropy head(group, kIn, kClasses, Sgd{.lr = 0.5, .momentum = 0.9}, options);
    std::vector<torch::Tensor> samples_of_steps;
    for (std::uint64_t step = 0; step < 4; ++step) {
      const auto before = whole(head, options.dtype).clone();
      const auto momentum = whole(head, options.dtype, "momentum_buffer").clone();
      Samples samples(3, kClasses, 10 * step, options.dtype);
      if (step > 1) samples.labels.remainder_(6);  // more of a piece than its share
      auto own = samples.of(samples.features, job.rank()).clone().requires_grad_();
      const auto loss = head->forward(own, samples.of(samples.labels, job.rank()));
      loss.backward();
      head->step();
      const auto after = whole(head, options.dtype);
      // Of each of 64 pieces of 7 or 8 classes, two took part, or as many as samples have.
      const auto moved = (after - before).abs().sum(1).ne(0);
      std::int64_t wanted = 0;
      for (std::int64_t piece = 0; piece < 64; ++piece) {
        const auto [first, last] = share_of(kClasses, piece, 64);
        std::set<std::int64_t> present;
        for (std::int64_t i = 0; i < samples.labels.numel(); ++i) {
          const auto label = samples.labels[i].item<std::int64_t>();
          if (label >= first && label < last) present.insert(label);
        }
        const auto most = std::max<std::int64_t>(2, std::ssize(present));
        EXPECT_EQ(moved.slice(0, first, last).sum().item<std::int64_t>(), most) << piece;
        for (const auto label : present) EXPECT_TRUE(moved[label].item<bool>());
        wanted += most;
      }
      // A row that took no part keeps its weights and its momentum.
      const auto kept = moved.logical_not();
      EXPECT_TRUE(torch::equal(whole(head, options.dtype, "momentum_buffer").index({kept}),
                               momentum.index({kept})));
      samples_of_steps.push_back(moved);
      // The loss is that of a problem with these classes alone.
      const auto classes = moved.nonzero().flatten();
      EXPECT_EQ(classes.numel(), wanted);
      auto dense = before.index_select(0, classes).requires_grad_();
      auto all = samples.features.clone().requires_grad_();
      const auto places = torch::searchsorted(classes, samples.labels);
      const auto losses = dense_losses(all, dense, places, options);
      torch::Tensor sum = torch::zeros({}, options.dtype);
      for (int r = 0; r < 3; ++r) {
        const auto theirs = samples.of(losses, r);
        const auto mean = theirs.numel() > 0 ? theirs.mean() : theirs.sum();
        if (r == job.rank()) expect_near(loss.detach(), mean.detach(), 1e-9, "loss");
        sum = sum + mean;
      }
      sum.backward();
      expect_near(own.grad(), samples.of(all.grad(), job.rank()), 1e-9, "features");
      const auto velocity = momentum.index_select(0, classes) * 0.9 + dense.grad();
      expect_near(after.index_select(0, classes), dense.detach() - velocity * 0.5, 1e-9, "weights");
    }
    EXPECT_FALSE(torch::equal(samples_of_steps[0], samples_of_steps[1]));
    // In eval() all classes take part.
    head->eval();
    const torch::NoGradGuard no_grad;
    const Samples samples(3, kClasses, 77, options.dtype);
    const auto loss = head->forward(samples.of(samples.features, job.rank()),
                                    samples.of(samples.labels, job.rank()));
    const auto losses = samples.of(
        dense_losses(samples.features, whole(head, options.dtype), samples.labels, options),
        job.rank());
    expect_near(loss, losses.numel() > 0 ? losses.mean() : losses.sum(), 1e-9, "eval");
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
