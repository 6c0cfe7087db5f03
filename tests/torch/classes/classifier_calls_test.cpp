// Calls of the split classifier: what a program does with it, and what it is told.

#include <sys/resource.h>

#include <cmath>
#include <fstream>

#include "torch/classes/classifier_cases.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// promise: parallel_cross_entropy.h#updates, parallel_cross_entropy.h#zero_grad
TEST(ParallelCrossEntropy, SeveralBackwardsAreOneUpdateAndNoneIsNone) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 20, Sgd{.lr = 1}, Options{.dtype = torch::kFloat64});
    auto dense = whole(head, torch::kFloat64).clone().requires_grad_();
    const auto start = head->sha256();
    const auto forward = [&](std::uint64_t seed) {
      const Samples samples(2, 20, seed, torch::kFloat64);
      return head->forward(samples.of(samples.features, job.rank()),
                           samples.of(samples.labels, job.rank()));
    };
    const auto of_dense = [&](std::uint64_t seed) {  // the second worker has no samples
      const Samples samples(2, 20, seed, torch::kFloat64);
      return dense_losses(samples.features, dense, samples.labels, {}).mean();
    };
    head->step();
    EXPECT_EQ(head->updates(), 0);
    forward(5);  // nobody calls backward() on it
    const auto twice = forward(1);
    twice.backward({}, true);
    (3 * twice).backward();
    forward(2).backward();
    head->step();
    EXPECT_EQ(head->updates(), 1);
    (4 * of_dense(1) + of_dense(2)).backward();
    expect_near(whole(head, torch::kFloat64), (dense - dense.grad()).detach(), 1e-9, "weights");
    forward(3).backward();
    head->zero_grad();
    head->step();
    EXPECT_EQ(head->updates(), 1);
    EXPECT_NE(head->sha256(), start);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(forward(4).requires_grad());
    }
  });
}

// promise: parallel_cross_entropy.h#step
TEST(ParallelCrossEntropy, AStepMayBeAtAnotherRate) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    const auto weights_at = [&](double rate, double factor) {
      ParallelCrossEntropy head(group, kIn, 20, Sgd{.lr = rate});
      const Samples samples(2, 20, 1, torch::kFloat32);
      head->forward(samples.of(samples.features, job.rank()),
                    samples.of(samples.labels, job.rank()))
          .backward();
      head->step(factor);
      return head->sha256();
    };
    EXPECT_EQ(weights_at(1, 0.25), weights_at(0.25, 1));
    EXPECT_NE(weights_at(1, 0.25), weights_at(1, 1));
  });
}

/// Classes that took part are those whose rows have moved.
// promise: parallel_cross_entropy.h#sample_rate
TEST(ParallelCrossEntropy, EachCallAndUpdateHasASampleOfItsOwn) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    constexpr std::int64_t kClasses = 200;
    const Samples samples(2, kClasses, 1, torch::kFloat32);
    const auto moved_with = [&](std::uint64_t seed) {
      ParallelCrossEntropy head(group, kIn, kClasses, Sgd{.lr = 0.1},
                                Options{.sample_rate = 0.3, .pieces = 3, .seed = seed});
      std::vector<torch::Tensor> moved;
      for (const int calls : {1, 1, 2}) {
        const auto before = whole(head, torch::kFloat32).clone();
        for (int call = 0; call < calls; ++call) {
          head->forward(samples.of(samples.features, job.rank()),
                        samples.of(samples.labels, job.rank()))
              .backward();
        }
        head->step();
        moved.push_back((whole(head, torch::kFloat32) - before).abs().sum(1).ne(0));
      }
      return moved;
    };
    const auto one = moved_with(1);
    const auto other = moved_with(2);
    EXPECT_EQ(one[0].sum().item<std::int64_t>(), one[1].sum().item<std::int64_t>());
    EXPECT_FALSE(torch::equal(one[0], one[1]));
    EXPECT_GT(one[2].sum().item<std::int64_t>(), one[0].sum().item<std::int64_t>());
    EXPECT_FALSE(torch::equal(one[0], other[0]));
    EXPECT_TRUE(torch::equal(one[1], moved_with(1)[1]));
  });
}

// promise: parallel_cross_entropy.h#LossReduction
TEST(ParallelCrossEntropy, ReductionsAreThoseOfTorch) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    for (const auto reduction : {LossReduction::none, LossReduction::sum, LossReduction::mean}) {
      Options options{.reduction = reduction, .dtype = torch::kFloat64};
      ParallelCrossEntropy head(group, kIn, 9, Sgd{.lr = 1}, options);
      auto dense = whole(head, torch::kFloat64).clone().requires_grad_();
      Samples samples(2, 9, 4, torch::kFloat64);
      samples.labels[0] = options.ignore_index;
      const auto own = samples.of(samples.features, job.rank());
      const auto weights = torch::arange(own.size(0)).to(torch::kFloat64) + 1;
      const auto loss = head->forward(own, samples.of(samples.labels, job.rank()));
      const auto losses = dense_losses(samples.features, dense, samples.labels, options);
      const auto theirs = samples.of(losses, 0);
      if (reduction == LossReduction::none) {
        EXPECT_EQ(loss.sizes(), own.sizes().slice(0, 1));
        (loss * weights).sum().backward();
        (theirs * (torch::arange(theirs.size(0)).to(torch::kFloat64) + 1)).sum().backward();
      } else {
        loss.backward();
        const bool is_mean = reduction == LossReduction::mean;
        (theirs.sum() / (is_mean ? static_cast<double>(theirs.size(0) - 1) : 1.0)).backward();
      }
      head->step();
      expect_near(whole(head, torch::kFloat64), (dense - dense.grad()).detach(), 1e-9, "weights");
    }
  });
}

// findings-3: A2
// promise: parallel_cross_entropy.h#correct, parallel_cross_entropy.h#predict
TEST(ParallelCrossEntropy, PredictsTheLowestClassOfTheLargestLogit) {
  for (const int size : {1, 3}) {
    on_workers(size, [&](const Job& job) {
      const Group group(job);
      ParallelCrossEntropy head(group, kIn, 300, Sgd{.lr = 1},
                                Options{.margin = cos_face(0.2, 8), .sample_rate = 0.2});
      for (auto& part : head->split_tensors()) {
        // Many are equal, and products with them are exact wherever a row lies in a block.
        if (part.name == "weight") part.rows.copy_(torch::one_hot(part.rows.argmax(1), kIn));
      }
      const auto weights = whole(head, torch::kFloat32);
      const Samples samples(size, 300, 5, torch::kFloat32);
      const auto own = samples.of(samples.features, job.rank());
      const auto logits = nn::normalize(own).matmul(nn::normalize(weights).t());
      const auto predicted = head->predict(own);
      ASSERT_EQ(predicted.sizes(), own.sizes().slice(0, 1));
      for (std::int64_t i = 0; i < own.size(0); ++i) {
        const auto chosen = logits[i][predicted[i]].item<float>();
        EXPECT_GE(chosen, logits[i].max().item<float>() - 1e-6);
        const auto same = weights.eq(weights[predicted[i]]).all(1).nonzero();
        EXPECT_EQ(same[0][0].item<std::int64_t>(), predicted[i].item<std::int64_t>());
      }
      head->eval();
      const torch::NoGradGuard no_grad;
      auto labels = predicted.clone();
      if (labels.numel() > 1) labels[0] = (labels[0] + 1).remainder(300);
      head->forward(own, labels);
      if (labels.numel() > 1) {
        const auto tie = weights.eq(weights[predicted[0]]).all(1)[labels[0]].item<bool>();
        EXPECT_EQ(head->correct()[0].item<bool>(), tie);
      }
      EXPECT_TRUE(head->correct().slice(0, 1).all().item<bool>());
    });
  }
}

// promise: parallel_cross_entropy.h#Margin
TEST(ParallelCrossEntropy, AMarginIsSafeAtBothEndsOfTheCosine) {
  on_workers(1, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(
        group, kIn, 2, Sgd{.lr = 0.1},
        Options{.margin = arc_face(0.5, 64), .reduction = LossReduction::sum});
    const auto weights = whole(head, torch::kFloat32);
    auto features =
        torch::cat({weights[0].unsqueeze(0) * 5, weights[1].unsqueeze(0) * -3}).requires_grad_();
    const auto loss = head->forward(features, torch::tensor({0, 1}, torch::kInt64));
    loss.backward();
    head->step();
    EXPECT_TRUE(loss.isfinite().item<bool>());
    EXPECT_TRUE(features.grad().isfinite().all().item<bool>());
    EXPECT_TRUE(whole(head, torch::kFloat32).isfinite().all().item<bool>());
  });
}

// promise: parallel_cross_entropy.h#dtype
TEST(ParallelCrossEntropy, SmallStepsOfBfloat16AreNotLost) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    // A class that is alone has no gradient, and is decayed by 2⁻¹¹ of itself in each step: to the
    // nearest bfloat16 it would never move.
    ParallelCrossEntropy head(group, 512, 1, Sgd{.lr = 1, .weight_decay = 1.0 / 2048},
                              Options{.dtype = torch::kBFloat16});
    const auto size = [&] {
      return whole(head, torch::kBFloat16).to(torch::kFloat64).abs().mean().item<double>();
    };
    const auto before = size();
    for (int step = 0; step < 64; ++step) {
      head->forward(torch::ones({1, 512}), torch::zeros({1}, torch::kInt64)).backward();
      head->step();
    }
    EXPECT_EQ(head->updates(), 64);
    EXPECT_NEAR(size() / before, std::pow(1 - 1.0 / 2048, 64), 2e-3);
  });
}

// promise: parallel_cross_entropy.h#forward
TEST(ParallelCrossEntropy, ALabelThatIsNoClassIsSaidAndTheGroupStays) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 10, Sgd{}, {});
    const auto features = draw(static_cast<std::uint64_t>(job.rank()), {4, kIn}, torch::kFloat32);
    auto labels = torch::tensor({0, 9, -100, 3}, torch::kInt64);
    const auto before = head->sha256();
    const auto expect = [&](const torch::Tensor& x, const torch::Tensor& y, const char* why) {
      if (job.rank() == 1) {
        EXPECT_THAT(text_of<InvalidArgument>([&] { head->forward(x, y); }), HasSubstr(why));
      } else {
        EXPECT_THAT(text_of<PeerFailed>([&] { head->forward(features, labels); }),
                    HasSubstr("classifier \"classifier\": rank 1 refuses the call"));
      }
    };
    for (const std::int64_t bad : {10, -1, -101}) {
      auto wrong = labels.clone();
      wrong[3] = bad;
      expect(features, wrong,
             ("label " + std::to_string(bad) + " of sample 3 is none of the 10 classes").c_str());
    }
    expect(features.slice(1, 0, 4), labels,
           "features must be [samples, 5] of Float on the CPU, "
           "not [4, 4] of Float");
    expect(features.to(torch::kFloat64), labels, "not [4, 5] of Double");
    expect(torch::Tensor(), labels, "not undefined");
    expect(features, labels.slice(0, 0, 3), "labels must be [4] of Long");
    expect(features, labels.to(torch::kInt32), "labels must be [4] of Long");
    head->forward(features, labels).backward();
    head->step();
    EXPECT_NE(head->sha256(), before);
  });
}

// promise: parallel_cross_entropy.h#ParallelCrossEntropyImpl, parallel_cross_entropy.h#ignore_index
TEST(ParallelCrossEntropy, ArgumentsThatMakeNoSenseOrDifferAreRefused) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    const auto refusal = [&](std::int64_t in, std::int64_t classes, const Options& options) {
      return text_of<InvalidArgument>(
          [&] { ParallelCrossEntropy(group, in, classes, Sgd{}, options); });
    };
    EXPECT_THAT(refusal(0, 5, {}), HasSubstr("0 features"));
    EXPECT_THAT(refusal(5, 0, {}), HasSubstr("0 classes"));
    for (const double rate : {0.0, 1.5, -1.0, std::nan("")}) {
      EXPECT_THAT(refusal(5, 5, {.sample_rate = rate}), HasSubstr("sample_rate must be above 0"));
    }
    EXPECT_THAT(refusal(5, 5, {.label_smoothing = 1}), HasSubstr("label_smoothing"));
    EXPECT_THAT(refusal(5, 5, {.ignore_index = 4}), HasSubstr("ignore_index 4 is one of the 5"));
    EXPECT_THAT(refusal(5, 5, {.pieces = 6}), HasSubstr("6 pieces of 5 classes"));
    EXPECT_THAT(refusal(5, 5, {.margin = Margin{.scale = 0}}), HasSubstr("scale positive"));
    EXPECT_THAT(text_of<Unsupported>([&] {
                  ParallelCrossEntropy(group, 5, 5, Sgd{}, Options{.dtype = torch::kFloat16});
                }),
                HasSubstr("weights of Half"));
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { ParallelCrossEntropy(group, 5, 5, Sgd{.lr = -1}, Options{}); }),
                HasSubstr("lr"));
    // Refused before anything is sent: the group is as it was.
    ParallelCrossEntropy good(group, 5, 5, Sgd{}, {});
    const Group other = group.split(0, "other");
    const auto mismatch = [&](std::int64_t classes, const Sgd& rule, const Options& options) {
      return text_of<Mismatch>([&] { ParallelCrossEntropy(other, 5, classes, rule, options); });
    };
    EXPECT_EQ(
        mismatch(100 + job.rank(), Sgd{}, {}),
        "classifier \"classifier\": workers disagree about the layer: classes is 100 on rank 0, "
        "101 on rank 1");
    EXPECT_THAT(mismatch(100, Sgd{.lr = 0.1 + job.rank()}, {}), HasSubstr("lr 0.1 "));
    EXPECT_THAT(mismatch(100, Sgd{}, {.seed = static_cast<std::uint64_t>(job.rank())}),
                HasSubstr("seed is 0 on rank 0, 1 on rank 1"));
  });
}

// promise: parallel_cross_entropy.h#step
TEST(ParallelCrossEntropy, AnUpdateOfDifferentCallsIsAMismatch) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 10, Sgd{}, {});
    const auto features = draw(1, {4, kIn}, torch::kFloat32);
    const auto labels = torch::tensor({0, 9, -100, 3}, torch::kInt64);
    const auto first = head->forward(features, labels);
    const auto second = head->forward(features, labels);
    (job.rank() == 0 ? first : second).backward();
    EXPECT_THAT(text_of<Mismatch>([&] { head->step(); }),
                AllOf(HasSubstr("disagree"),
                      HasSubstr("classifier: update at rate 1 by backwards of calls")));
  });
}

// promise: parallel_cross_entropy.h#ParallelCrossEntropyImpl
TEST(ParallelCrossEntropy, IsRefusedByAWorkersOwnLimitAndTrainsWhereTwoShareIt) {
  constexpr std::int64_t kClasses = 200'000;
  constexpr std::int64_t kFeatures = 256;  // 400 MiB with momentum
  for (const int size : {1, 2}) {
    on_workers(size, [&](const Job& job) {
      const Group group(job);
      // What is there by now, and 300 MiB.
      std::uint64_t used = 0;
      std::ifstream status("/proc/self/status");
      for (std::string word; status >> word;) {
        if (word == "VmData:") status >> used;
      }
      ASSERT_GT(used, 0U);
      const rlim_t limit = (used << 10) + (std::uint64_t{300} << 20);
      const rlimit both{limit, limit};
      ASSERT_EQ(::setrlimit(RLIMIT_DATA, &both), 0);
      const auto make_and_train = [&] {
        ParallelCrossEntropy head(group, kFeatures, kClasses, Sgd{.lr = 0.1, .momentum = 0.9},
                                  Options{.name = "large"});
        const auto loss = head->forward(draw(1, {3, kFeatures}, torch::kFloat32),
                                        torch::tensor({0, 5, 199'999}, torch::kInt64));
        loss.backward();
        head->step();
        EXPECT_EQ(head->updates(), 1);
      };
      if (size == 2) return make_and_train();
      EXPECT_THAT(text_of<OutOfMemory>(make_and_train),
                  AllOf(HasSubstr("classifier \"large\" of 200000 classes and 256 features needs "
                                  "390.62 MiB for one worker, but RLIMIT_DATA has"),
                        HasSubstr("left of")));
    });
  }
}

// promise: parallel_cross_entropy.h#ClassifierMemory, parallel_cross_entropy.h#bytes
TEST(ClassifierMemory, IsThatOfTheLayer) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      const Options options{.dtype = type};
      const auto memory = classifier_memory(3, kIn, 1000, Adam{}, options);
      ParallelCrossEntropy head(group, kIn, 1000, Adam{}, options);
      std::uint64_t bytes = 0;
      for (const auto& part : head->split_tensors()) bytes += part.rows.nbytes();
      EXPECT_EQ(head->bytes(), bytes);
      EXPECT_EQ(head->bytes_of_all(), memory.of_all);
      EXPECT_EQ(memory.of_all, 1000U * kIn * (c10::elementSize(type) + 8));
      auto all = static_cast<std::int64_t>(bytes);
      auto most = all;
      group.all_reduce({&all, 1, DType::int64}, Reduction::sum);
      group.all_reduce({&most, 1, DType::int64}, Reduction::max);
      EXPECT_EQ(static_cast<std::uint64_t>(all), memory.of_all);
      EXPECT_EQ(static_cast<std::uint64_t>(most), memory.largest_member);
    }
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
