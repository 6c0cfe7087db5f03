// What programs do by habit with a split classifier: graphs that are kept, gradients that are
// looked at, zero_grad() and clips in unusual places.

#include <limits>

#include "torch/classes/trained_classifier.h"
#include "tutti/split_tensors.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trained::Net;
using trained::samples_of;

struct Batch {
  explicit Batch(std::uint64_t seed = 1, torch::ScalarType type = torch::kFloat64)
      : x(draw(seed, {6, kIn}, type).requires_grad_()),
        y(torch::tensor({0, 3, 3, 9, 1, 7}, torch::kInt64)) {}
  torch::Tensor x, y;
};

/// How far `body` moves the weights of a layer of ten classes.
torch::Tensor moved_by(const Group& group,
                       const std::function<void(ParallelCrossEntropy&, const Batch&)>& body) {
  ParallelCrossEntropy head(group, kIn, 10, Sgd{.lr = 1}, Options{.dtype = torch::kFloat64});
  const auto before = whole(head, torch::kFloat64).clone();
  body(head, Batch());
  return whole(head, torch::kFloat64) - before;
}

// promise: parallel_cross_entropy.h#step, parallel_cross_entropy.h#zero_grad
TEST(ClassifierHabits, ABackwardCountsOnceWhateverWasForgottenBefore) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto once = moved_by(group, [](auto& head, const Batch& batch) {
      head->forward(batch.x, batch.y).backward();
      head->step();
    });
    const auto forgotten = moved_by(group, [](auto& head, const Batch& batch) {
      const auto loss = head->forward(batch.x, batch.y);
      loss.backward({}, /*retain_graph=*/true);
      head->zero_grad();
      loss.backward();
      head->step();
    });
    EXPECT_TRUE(forgotten.equal(once));
    const auto twice = moved_by(group, [](auto& head, const Batch& batch) {
      const auto loss = head->forward(batch.x, batch.y);
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      head->step();
    });
    expect_near(twice, 2 * once, 1e-12, "weights");
    moved_by(group, [](auto& head, const Batch& batch) {
      const auto loss = head->forward(batch.x, batch.y);
      loss.backward({}, /*retain_graph=*/true);
      head->step();
      EXPECT_THAT(text_of<InvalidArgument>([&] { loss.backward(); }),
                  HasSubstr("a backward of a forward() that was before an update of the weights"));
    });
  });
}

// promise: parallel_cross_entropy.h#step, split_module.h#anchor
TEST(ClassifierHabits, AGradientOfTheFeaturesAloneCountsNothing) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto still = moved_by(group, [](auto& head, const Batch& batch) {
      const auto loss = head->forward(batch.x, batch.y);
      const auto gradient = torch::autograd::grad({loss}, {batch.x})[0];
      EXPECT_GT(gradient.abs().max().template item<double>(), 0);
      head->step();
      EXPECT_EQ(head->updates(), 0);
    });
    EXPECT_TRUE(still.equal(torch::zeros_like(still)));
    moved_by(group, [](auto& head, const Batch& batch) {
      head->forward(batch.x.detach(), batch.y).backward();  // nothing else needs a gradient
      head->step();
      EXPECT_EQ(head->updates(), 1);
    });
  });
}

TEST(ClassifierHabits, AClipHoldsForWhatWasThereAndIsSeenByTheNext) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto net = std::make_shared<Net>(group, Options{});
    const DataParallel parallel(group, *net);
    const auto [x, y] = samples_of(1, job.rank());
    net->head->forward(net->trunk->forward(x), y).backward();
    const double norm = clip_grad_norm(group, *net, 1e9);
    EXPECT_NEAR(clip_grad_norm(group, *net, norm / 4), norm, 1e-5 * norm);
    EXPECT_NEAR(clip_grad_norm(group, *net, 1e9), norm / 4, 1e-4 * norm);
    EXPECT_NEAR(clip_grad_norm(group, *net, norm), norm / 4, 1e-4 * norm);
    EXPECT_THAT(text_of<Mismatch>([&] { clip_grad_norm(group, *net, 1.0 + job.rank()); }),
                HasSubstr("disagree"));
  });
}

// promise: parallel_cross_entropy.h#forward, parallel_cross_entropy.h#step
TEST(ClassifierHabits, CallsAndUpdatesOfDifferentKindsAreMismatches) {
  const auto texts = [](const std::function<void(ParallelCrossEntropy&, ParallelCrossEntropy&, int,
                                                 const Batch&)>& body) {
    on_workers(2, [&](const Job& job) {
      const Group group(job);
      const Options options{.sample_rate = 0.5, .dtype = torch::kFloat64};
      ParallelCrossEntropy one(group, kIn, 10, Sgd{}, options);
      ParallelCrossEntropy other(group, kIn, 10, Sgd{}, options);
      EXPECT_THAT(text_of<Mismatch>([&] { body(one, other, job.rank(), Batch()); }),
                  HasSubstr("disagree"));
    });
  };
  texts([](auto& one, auto&, int rank, const Batch& batch) {
    if (rank == 0) one->eval();
    one->forward(batch.x, batch.y);
  });
  texts([](auto& one, auto& other, int rank, const Batch& batch) {
    (rank == 0 ? one : other)->forward(batch.x, batch.y);
  });
  texts([](auto& one, auto& other, int rank, const Batch& batch) {
    (one->forward(batch.x, batch.y) + other->forward(batch.x, batch.y)).backward();
    (rank == 0 ? one : other)->step();
  });
  texts([](auto& one, auto&, int rank, const Batch& batch) {
    one->forward(batch.x, batch.y).backward();
    one->step(1.0 + rank);
  });
  texts([](auto& one, auto&, int rank, const Batch& batch) {
    one->forward(batch.x, batch.y).backward();
    if (rank == 0) one->zero_grad();
    one->forward(batch.x, batch.y).backward();
    one->step();
  });
  texts([](auto& one, auto&, int rank, const Batch& batch) {
    const auto first = one->forward(batch.x, batch.y);
    one->zero_grad();
    const auto second = one->forward(batch.x, batch.y);
    (rank == 0 ? first : second).backward();
    one->step();
  });
  texts([](auto& one, auto&, int rank, const Batch& batch) {
    one->eval();
    const auto first = one->forward(batch.x, batch.y);
    const auto second = one->forward(batch.x, batch.y);
    (rank == 0 ? first : second).backward();
    one->step();
  });
  on_workers(1, [](const Job& job) {
    ParallelCrossEntropy head(Group(job), kIn, 10, Sgd{}, {});
    EXPECT_THAT(text_of<InvalidArgument>([&] { head->step(std::nan("")); }),
                HasSubstr("step(nan)"));
  });
}

// promise: parallel_cross_entropy.h#predict
TEST(ClassifierHabits, NanIsTheLargestLogitAsInTorch) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 40, Sgd{}, {});
    auto x = draw(static_cast<std::uint64_t>(job.rank()), {3, kIn}, torch::kFloat32);
    x[1][2] = std::numeric_limits<float>::quiet_NaN();
    const auto logits = x.matmul(whole(head, torch::kFloat32).t());
    EXPECT_TRUE(head->predict(x).equal(logits.argmax(1)));
  });
}

TEST(ClassifierHabits, ThePeerOfABadCallReadsWhatItWas) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 10, Sgd{}, {});
    const auto x = torch::ones({2, kIn});
    const auto text = text_of([&] {
      head->forward(x, torch::tensor({0, job.rank() == 1 ? 10 : 3}, torch::kInt64));
    });
    EXPECT_THAT(text, HasSubstr("label 10 of sample 1 is none of the 10 classes"));
  });
}

// ---- in a DataParallel ----

// promise: split_module.h#anchor
TEST(ClassifierHabits, AFrozenTrunkLeavesTheWeightsOfTheStep) {
  const auto moved = [](int size, bool frozen, double weight) {
    return text_of_rank_0(size, [&](const Job& job) {
      const Group group(job);
      auto net = std::make_shared<Net>(group, Options{});
      if (frozen) {
        for (auto& parameter : net->trunk->parameters()) parameter.requires_grad_(false);
      }
      DataParallel parallel(group, *net);
      for (int step = 0; step < 2; ++step) {
        parallel.next_weight(weight * (1 + job.rank()));
        const auto [x, y] = samples_of(1, job.rank());
        net->head->forward(net->trunk->forward(x), y).backward();
        net->head->step();
        net->trunk->zero_grad();
      }
      return net->head->sha256();
    });
  };
  for (const int size : {1, 2}) {
    for (const double weight : {1.0, 8.0}) {
      EXPECT_EQ(moved(size, true, weight), moved(size, false, weight)) << size << " " << weight;
    }
  }
}

TEST(ClassifierHabits, AWorkerOfWeight0GivesNothingWhateverItsFeaturesAre) {
  const auto trained = [](float bad) {
    return text_of_rank_0(2, [&](const Job& job) {
      const Group group(job);
      auto net = std::make_shared<Net>(group, Options{.label_smoothing = 0.1});
      DataParallel parallel(group, *net);
      parallel.next_weight(job.rank() == 0 ? 1 : 0);
      auto [x, y] = samples_of(1, job.rank());
      if (job.rank() == 1) x = torch::full_like(x, bad);
      net->head->forward(net->trunk->forward(x), y).backward();
      EXPECT_TRUE(std::isfinite(clip_grad_norm(group, *net, 1e9)));
      net->head->step();
      EXPECT_TRUE(whole(net->head, torch::kFloat32).isfinite().all().item<bool>());
      return net->head->sha256();
    });
  };
  const auto expected = trained(1);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(trained(bad), expected) << bad;
  }
}

// promise: split_module.h#take
TEST(ClassifierHabits, ALayerIsPartOfOneTrainerOrDataParallel) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    Net net(group, {});
    struct Other : torch::nn::Module {
      explicit Other(ParallelCrossEntropy own)
          : trunk(register_module("trunk", torch::nn::Linear(6, kIn))),
            head(register_module("head", std::move(own))) {}
      torch::nn::Linear trunk;
      ParallelCrossEntropy head;
    } other(net.head);
    {
      Trainer trainer(group, net, Sgd{}, {.name = "first"});
      EXPECT_THAT(
          text_of<InvalidArgument>([&] { Trainer(group, other, Sgd{}, {.name = "second"}); }),
          AllOf(HasSubstr("a split layer of Trainer \"second\""),
                HasSubstr("is part of Trainer \"first\" already")));
      EXPECT_THAT(text_of<InvalidArgument>(
                      [&] { const DataParallel third(group, other, {.name = "third"}); }),
                  HasSubstr("is part of Trainer \"first\" already"));
    }
    DataParallel parallel(group, other);
    EXPECT_THAT(text_of<InvalidArgument>([&] { Trainer(group, net, Sgd{}, {}); }),
                HasSubstr("is part of DataParallel"));
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
