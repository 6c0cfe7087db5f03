// A loop's own optimizer with scaled losses: who leaves a step out, and what gradients are then.

#include <limits>
#include <string>
#include <vector>

#include "torch/training.h"

namespace tutti::test {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

struct Loop {
  explicit Loop(const Job& job, double momentum = 0.9)
      : model(mlp()),
        parallel(job, *model),
        optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(momentum)) {}
  /// The loss of this worker's rows; those of the last rank overflow where `is_bad`.
  torch::Tensor loss(const Job& job, std::uint64_t seed, bool is_bad = false) {
    const auto begin = 2 * job.rank();
    auto loss = Batch(2 * job.size(), seed).loss(model, begin, begin + 2);
    if (is_bad && job.rank() == job.size() - 1) {
      loss = loss * std::numeric_limits<float>::infinity();
    }
    return loss;
  }
  nn::Sequential model;
  DataParallel parallel;
  torch::optim::SGD optimizer;
};

// promise: loss_scaler.h#scale
TEST(LossScaling, ByPowersOfTwoChangesNoBit) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      const auto trained = [&](bool scales) {
        torch::manual_seed(3);
        Loop loop(job);
        LossScaler scaler(loop.parallel,
                          {.start = 1024, .dynamic = true, .grow_after = 2, .maximum = 65536});
        for (std::uint64_t step = 1; step <= 5; ++step) {
          loop.optimizer.zero_grad();
          const auto loss = loop.loss(job, step);
          if (scales) {
            scaler.scale(loss).backward();
            EXPECT_TRUE(scaler.step(loop.optimizer));
            scaler.update();
          } else {
            loss.backward();
            loop.optimizer.step();
          }
        }
        EXPECT_EQ(scaler.factor(), scales ? 4096 : 1024);
        return parameters_sha256(*loop.model);
      };
      EXPECT_EQ(trained(true), trained(false));
    });
  }
}

// promise: loss_scaler.h#step
TEST(LossScaling, AStepThatOverflowsOnOneWorkerIsLeftOutByAll) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      torch::manual_seed(3);
      Loop loop(job);
      LossScaler scaler(loop.parallel, {.start = 256, .dynamic = true, .grow_after = 3});
      std::vector<double> factors;
      for (std::uint64_t step = 1; step <= 6; ++step) {
        loop.optimizer.zero_grad();
        const auto before = parameters_sha256(*loop.model);
        scaler.scale(loop.loss(job, step, step == 2)).backward();
        EXPECT_EQ(scaler.step(loop.optimizer), step != 2);
        scaler.update();
        EXPECT_EQ(parameters_sha256(*loop.model) == before, step == 2);
        factors.push_back(scaler.factor());
      }
      EXPECT_EQ(factors, (std::vector<double>{256, 128, 128, 128, 256, 256}));
      expect_equal_everywhere(loop.parallel.group(), *loop.model);
    });
  }
}

// The owner alone has the gradient that is not finite.
TEST(LossScaling, AnOwnersGradientDecidesForAll) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallelOptions options;
    options.placement = [](const std::string& name) -> std::optional<std::int64_t> {
      return name.starts_with("0.") ? 1 : 0;
    };
    DataParallel parallel(job, *model, options);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    LossScaler scaler(parallel);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      optimizer.zero_grad();
      auto x = Batch(4, step).x.slice(0, 2 * job.rank(), 2 * job.rank() + 2);
      auto& first = *model->ptr(0)->as<nn::Linear>();
      auto loss = model->forward(x).square().mean();
      // The first layer's bias alone has a bad gradient.
      if (step == 2) loss = loss + first.bias.sum() * std::numeric_limits<float>::infinity() * 0;
      scaler.scale(loss).backward();
      EXPECT_EQ(scaler.step(optimizer), step != 2);
      scaler.update();
      parallel.broadcast_placed();
    }
    EXPECT_EQ(scaler.factor(), 32768);
    expect_equal_everywhere(parallel.group(), *model);
  });
}

// promise: loss_scaler.h#unscale
TEST(LossScaling, WhoClipsSeesGradientsThatAreDivided) {
  on_workers(2, [](const Job& job) {
    const auto trained = [&](bool scales) {
      torch::manual_seed(3);
      Loop loop(job);
      LossScaler scaler(loop.parallel, {.start = scales ? 512.0 : 1.0});
      for (std::uint64_t step = 1; step <= 3; ++step) {
        loop.optimizer.zero_grad();
        scaler.scale(loop.loss(job, step)).backward();
        scaler.unscale(loop.optimizer);
        nn::utils::clip_grad_norm_(loop.model->parameters(), 0.25);
        EXPECT_TRUE(scaler.step(loop.optimizer));
        scaler.update();
      }
      return parameters_sha256(*loop.model);
    };
    EXPECT_EQ(trained(true), trained(false));
  });
}

// What is clipped, or put in the place of infinity, was not finite all the same.
// promise: loss_scaler.h#unscale, loss_scaler.h#update
TEST(LossScaling, WhatTheLoopDoesToGradientsDoesNotHideAnOverflow) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      torch::manual_seed(3);
      Loop loop(job, 0);
      LossScaler scaler(loop.parallel, {.start = 256, .dynamic = true, .grow_after = 2});
      const auto before = parameters_sha256(*loop.model);
      for (const bool steps : {true, false}) {
        loop.optimizer.zero_grad();
        scaler.scale(loop.loss(job, 1, /*is_bad=*/true)).backward();
        scaler.unscale(loop.optimizer);
        nn::utils::clip_grad_value_(loop.model->parameters(), 1);
        // A loop that has looked at the norm itself takes no step.
        if (steps) {
          EXPECT_FALSE(scaler.step(loop.optimizer));
        }
        scaler.update();
      }
      EXPECT_EQ(parameters_sha256(*loop.model), before);
      EXPECT_EQ(scaler.factor(), 64);
    });
  }
}

TEST(LossScaling, GradientsInFloat16AreRefused) {
  on_workers(1, [](const Job& job) {
    auto model = mlp();
    model->to(torch::kHalf);
    DataParallel parallel(job, *model);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    LossScaler scaler(parallel);
    scaler.scale(model->forward(torch::ones({2, 6}, torch::kHalf)).sum()).backward();
    EXPECT_THAT(text_of([&] { scaler.step(optimizer); }), HasSubstr("master copies"));
  });
}

// promise: loss_scaler.h#step
TEST(LossScaling, WorkersWithoutDataTakePartInJoin) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(3);
    Loop loop(job);
    LossScaler scaler(loop.parallel, {.start = 64, .dynamic = true});
    const std::uint64_t steps = job.rank() == 0 ? 4 : 2;
    const auto update = [&] {
      scaler.step(loop.optimizer);
      scaler.update();
      loop.optimizer.zero_grad();
    };
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const float bad = step == 4 ? std::numeric_limits<float>::infinity() : 1;
      scaler.scale(loop.loss(job, step) * bad).backward();
      update();
    }
    loop.parallel.join(update);
    EXPECT_EQ(scaler.factor(), 32);
    expect_equal_everywhere(loop.parallel.group(), *loop.model);
  });
}

TEST(LossScaling, RowsOfSparseGradientsAreDividedToo) {
  on_workers(2, [](const Job& job) {
    const auto trained = [&](double factor) {
      torch::manual_seed(3);
      nn::Embedding table(nn::EmbeddingOptions(9, 4).sparse(true));
      DataParallel parallel(job, *table);
      torch::optim::SGD optimizer(table->parameters(), 0.5);
      LossScaler scaler(parallel, {.start = factor});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const auto rows = torch::tensor({job.rank(), step, 7});
        scaler.scale(table->forward(rows).square().sum()).backward();
        EXPECT_TRUE(scaler.step(optimizer));
        scaler.update();
      }
      return parameters_sha256(*table);
    };
    EXPECT_EQ(trained(4096), trained(1));
  });
}

TEST(LossScaling, TwoOptimizersShareOneFactor) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(3);
    Loop loop(job);
    auto& layers = *loop.model;
    torch::optim::SGD first(layers[0]->parameters(), 0.1);
    torch::optim::SGD second(layers[2]->parameters(), 0.1);
    LossScaler scaler(loop.parallel, {.start = 64, .dynamic = true});
    for (std::uint64_t step = 1; step <= 3; ++step) {
      layers.zero_grad();
      auto loss = loop.loss(job, step);
      if (step == 2) {
        loss = loss + layers[2]->parameters()[1].sum() * std::numeric_limits<float>::infinity();
      }
      scaler.scale(loss).backward();
      EXPECT_TRUE(scaler.step(first)) << "its gradients are finite";
      EXPECT_EQ(scaler.step(second), step != 2);
      scaler.update();
    }
    EXPECT_EQ(scaler.factor(), 32) << "once, though two have looked";
  });
}

// promise: loss_scaler.h#load
TEST(LossScaling, IsSavedAndLoadedByTheProgram) {
  on_workers(1, [](const Job& job) {
    Loop loop(job);
    const LossScale scale{.start = 64, .dynamic = true, .grow_after = 3};
    LossScaler first(loop.parallel, scale);
    const auto one_step = [&](LossScaler& scaler) {
      loop.optimizer.zero_grad();
      scaler.scale(loop.loss(job, 1)).backward();
      scaler.step(loop.optimizer);
      scaler.update();
    };
    for (int step = 0; step < 2; ++step) one_step(first);
    LossScaler second(loop.parallel, scale);
    second.load(first.state());
    one_step(second);
    EXPECT_EQ(second.factor(), 128) << "the third good step in succession";
    EXPECT_THAT(text_of([&] { second.load({.factor = 0.25}); }), HasSubstr("never has"));
  });
}

// promise: loss_scaler.h#LossScaler
TEST(LossScaling, CallsInAnotherOrderAreRefused) {
  on_workers(1, [](const Job& job) {
    Loop loop(job);
    LossScaler scaler(loop.parallel);
    EXPECT_THAT(text_of([&] { scaler.update(); }),
                HasSubstr("no optimizer's gradients were divided"));
    scaler.scale(loop.loss(job, 1)).backward();
    scaler.unscale(loop.optimizer);
    EXPECT_THAT(text_of([&] { scaler.unscale(loop.optimizer); }), HasSubstr("were divided"));
    scaler.step(loop.optimizer);
    EXPECT_THAT(text_of([&] { scaler.step(loop.optimizer); }), HasSubstr("has taken its step"));
    EXPECT_THAT(text_of([&] { scaler.unscale(loop.optimizer); }), HasSubstr("were divided"));
    EXPECT_THAT(text_of([&] { LossScaler(loop.parallel, {.start = 1e12}); }),
                HasSubstr("between 1e-10 and 1e+10"));
  });
}

// promise: loss_scaler.h#LossScaler
TEST(LossScaling, OfNoDataParallelIsEachWorkersOwn) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    LossScaler scaler({.start = 64, .dynamic = true});
    const float bad = job.rank() == 1 ? std::numeric_limits<float>::infinity() : 1;
    scaler.scale(Batch(4, 1).loss(model, 0, 4) * bad).backward();
    EXPECT_EQ(scaler.step(optimizer), job.rank() == 0);
    scaler.update();
    EXPECT_EQ(scaler.factor(), job.rank() == 0 ? 64 : 32);
  });
}

}  // namespace
}  // namespace tutti::test
