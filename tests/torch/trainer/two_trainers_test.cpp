// Two Trainers whose models run in each other's steps: what goes wrong names the Trainer and the
// tensor, and says what helps.

#include "torch/training.h"

namespace tutti::test::two_trainers_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Sequential generator() {
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6));
}

TEST(TwoTrainers, ALossThatRunsThroughTheOtherModelNamesItsParameterAndTheWayOut) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(3);
    torch::nn::Sequential g(torch::nn::Linear(4, 6));
    auto d = mlp();
    Trainer g_trainer(job, *g, Sgd{.lr = 0.1}, {.shards = 2, .name = "generator"});
    Trainer d_trainer(job, *d, Sgd{.lr = 0.1}, {.shards = 2, .name = "discriminator"});
    const auto g_step = [&] {
      return g_trainer.step([&](Shard& shard) {
        return shard.loss(d->forward(g->forward(torch::randn({5, 4}))).square().mean());
      });
    };
    EXPECT_THAT(text_of<Error>([&] { g_step(); }),
                AllOf(HasSubstr("\" of Trainer \"discriminator\" outside of its steps"),
                      HasSubstr("requires_grad_(false)")));
    for (auto& parameter : d->parameters()) parameter.requires_grad_(false);
    EXPECT_TRUE(g_step().applied);
    for (auto& parameter : d->parameters()) parameter.requires_grad_(true);
    EXPECT_TRUE(
        d_trainer.step([&](Shard& shard) { return rows_of(shard, d, Batch(12, 1)); }).applied);
  });
}

TEST(TwoTrainers, StatisticsThatTheOthersStepMovesNameTheirTrainer) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(3);
    auto g = generator();
    auto d = mlp();
    Trainer g_trainer(job, *g, Sgd{.lr = 0.1}, {.shards = 2, .name = "generator"});
    Trainer d_trainer(job, *d, Sgd{.lr = 0.1}, {.shards = 2, .name = "discriminator"});
    d_trainer.step([&](Shard& shard) {
      const auto made = g->forward(torch::randn({5, 4})).detach();
      return shard.loss(d->forward(made).square().mean());
    });
    EXPECT_THAT(
        text_of<Error>([&] { g_trainer.step([&](Shard& shard) { return shard.nothing(); }); }),
        AllOf(HasSubstr("buffer \"1.running_mean\" of Trainer \"generator\""),
              HasSubstr("one Trainer a module that registers both")));
  });
}

}  // namespace
}  // namespace tutti::test::two_trainers_cases
