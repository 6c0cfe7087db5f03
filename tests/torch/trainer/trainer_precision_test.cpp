// A Trainer's numbers of fewer bits, and what keeps them in range: autocast, loss scale, float16.

#include <ATen/autocast_mode.h>

#include <set>

#include "torch/training.h"

namespace tutti::test::trainer_precision_cases {
namespace {

/// Casts to bfloat16, for the whole program.
void set_autocast(bool on, bool cache) {
  at::autocast::set_autocast_enabled(at::kCPU, on);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_cache_enabled(cache);
}

TEST(Trainer, AutocastGivesTheSameBytesOnAnyNumberOfWorkers) {
  const auto train = [](int workers, bool on, bool cache) {
    return text_of_rank_0(workers, [&](const Job& job) {
      set_autocast(on, cache);
      torch::manual_seed(3);
      auto model = mlp();
      Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 5, .loss_scale = {.start = 64}});
      const auto loss_on = [&](const Batch& batch) {
        const auto scores = model->forward(batch.x);
        EXPECT_EQ(scores.scalar_type(), on ? torch::kBFloat16 : torch::kFloat32);
        return (scores.to(torch::kFloat32) - batch.y).square().mean();
      };
      for (std::uint64_t step = 1; step <= 5; ++step) {
        const Batch batch(19, step);
        trainer.step([&](Shard& shard) { return shard.loss(loss_on(batch)); });
      }
      const auto metrics = trainer.evaluate(1, 1, [&](const auto&, auto& metrics) {
        metrics.sum("loss", loss_on(Batch(19, 9)).template item<double>());
      });
      set_autocast(false, true);
      return trainer.state_sha256() + std::to_string(metrics["loss"]);
    });
  };
  const auto alone = train(1, true, true);
  EXPECT_EQ(train(3, true, true), alone);
  EXPECT_EQ(train(1, true, false), alone) << "a cast of a parameter outlived its update";
  EXPECT_NE(train(1, false, true), alone);
}

// promise: numerics#divisor-and-weights, loss_scale.h#LossScale
TEST(Trainer, APowerOfTwoAsLossScaleChangesNoBit) {
  std::set<std::string> ends;
  for (const auto& scale : {LossScale{}, LossScale{.start = 1024}, dynamic_loss_scale()}) {
    ends.insert(text_of_rank_0(2, [&](const Job& job) {
      torch::manual_seed(4);
      auto model = mlp();
      Trainer trainer(job, *model, Adam{.lr = 0.1},
                      {.shards = 3, .clip = {.norm = 0.1}, .loss_scale = scale});
      for (std::uint64_t step = 1; step <= 5; ++step) {
        const auto result =
            trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(19, step)); });
        EXPECT_EQ(result.loss_scale, scale.start);
      }
      return trainer.state_sha256();
    }));
  }
  EXPECT_EQ(ends.size(), 1u);
}

// promise: loss_scale.h#dynamic_loss_scale
TEST(Trainer, TheDynamicLossScaleHasTheNumbersOfGradScaler) {
  const LossScale scale = dynamic_loss_scale();
  EXPECT_TRUE(scale.dynamic);
  EXPECT_EQ(scale.start, 65536);
  EXPECT_EQ(scale.growth, 2);
  EXPECT_EQ(scale.backoff, 0.5);
  EXPECT_EQ(scale.grow_after, 2000);
}

// Two divisions, by the weights and by the scale, would round twice.
// promise: numerics#divisor-and-weights, loss_scale.h#LossScale
TEST(Trainer, ALossScaleIsDividedOutTogetherWithTheWeights) {
  on_workers(2, [](const Job& job) {
    torch::nn::Linear model(torch::nn::LinearOptions(1000, 1).bias(false));
    Trainer trainer(job, *model, Sgd{.lr = 1}, {.shards = 2, .loss_scale = {.start = 3}});
    const auto x = torch::randn({2, 1000}, at::make_generator<at::CPUGeneratorImpl>(5));
    trainer.accumulate([&](Shard& shard) {
      const double weight = shard.index() == 0 ? 2 : 5;
      return shard.loss(model->forward(x[shard.index()]).sum(), weight);
    });
    const auto got = trainer.gradient("weight").flatten();
    const auto sum = 2 * (3 * x[0]) + 5 * (3 * x[1]);
    EXPECT_TRUE(torch::equal(got, sum / 21));
    EXPECT_FALSE(torch::equal(got, sum / 7 / 3)) << "the data tell nothing";
    EXPECT_FALSE(torch::equal(got, sum / 3 / 7)) << "the data tell nothing";
    trainer.apply();
  });
}

// promise: loss_scale.h#LossScale, trainer_options.h#max_consecutive_drops
TEST(Trainer, ADynamicLossScaleShrinksUntilTheStepFits) {
  on_workers(2, [](const Job& job) {
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    Trainer trainer(job, *model, Sgd{.lr = 1e-30},
                    {.shards = 2,
                     .loss_scale = {.start = 8, .dynamic = true, .grow_after = 2},
                     .max_consecutive_drops = 1});
    const auto step = [&] {
      return trainer.step([&](Shard& shard) {
        return shard.loss((model->forward(torch::ones({1, 1})) * 6e37F).sum());
      });
    };
    // 8 and 4 times 6e37 are beyond float32, and so is the sum of twice 2 · 6e37 … not.
    const std::pair<double, bool> expected[] = {{8, false}, {4, false}, {2, true},
                                                {2, true},  {4, false}, {2, true}};
    for (const auto& [scale, applied] : expected) {
      const auto result = step();
      EXPECT_EQ(result.loss_scale, scale);
      EXPECT_EQ(result.applied, applied) << result.dropped_because;
    }
  });
}

TEST(Trainer, Float16WithADynamicLossScaleIsTheSameOnAnyNumberOfWorkers) {
  std::set<std::string> ends;
  for (const int workers : {1, 2, 3}) {
    ends.insert(text_of_rank_0(workers, [](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      model->to(torch::kHalf);
      Trainer trainer(
          job, *model, Adam{.lr = 1e-2},
          {.shards = 3, .clip = {.norm = 1}, .loss_scale = {.start = 1 << 18, .dynamic = true}});
      int dropped = 0;
      for (int step = 0; step < 8; ++step) {
        const auto result = trainer.step([&](Shard& shard) {
          const auto x = torch::randn({4, 6}).to(torch::kHalf);
          return shard.loss((model->forward(x).square().mean() + 1).log());
        });
        if (!result.applied) ++dropped;
      }
      EXPECT_GE(dropped, 1);  // 2¹⁸ times the loss is beyond float16
      EXPECT_LE(dropped, 5);
      EXPECT_EQ(model->parameters()[0].dtype(), torch::kHalf);
      return trainer.state_sha256();
    }));
  }
  EXPECT_EQ(ends.size(), 1u);
}

}  // namespace
}  // namespace tutti::test::trainer_precision_cases
