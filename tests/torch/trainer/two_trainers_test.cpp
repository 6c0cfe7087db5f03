// Two Trainers whose models run in each other's steps: what goes wrong names the Trainer and the
// tensor, and says what helps.

#include <future>
#include <thread>

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

// Both draw from torch's one generator: dropout came out otherwise each time.
// findings-3: B11
TEST(TwoTrainers, OnTwoThreadsOfAProcessAStepThatBeginsInsideTheOthersNamesBoth) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(3);
      auto g = mlp();
      auto d = mlp();
      Trainer g_trainer(job, *g, Sgd{.lr = 0.1}, {.shards = 6, .name = "generator"});
      Trainer d_trainer(job, *d, Sgd{.lr = 0.1}, {.shards = 6, .name = "discriminator"});
      const auto d_step = [&] {
        return d_trainer.step([&](Shard& shard) { return rows_of(shard, d, Batch(12, 1)); });
      };
      const auto nothing = [](const std::vector<std::int64_t>&, ShardMetrics&) {};
      const auto both = AllOf(HasSubstr("\"discriminator\""), HasSubstr("\"generator\""),
                              HasSubstr("another thread"));
      const auto on_thread = [](const std::function<void()>& body) {
        return std::async(std::launch::async, [&] { return text_of<InvalidArgument>(body); }).get();
      };
      bool tried = false;
      torch::Tensor drawn;
      const auto result = g_trainer.step([&](Shard& shard) {
        if (!std::exchange(tried, true)) {
          // All workers' second threads are here: none waits for one that does not come.
          EXPECT_THAT(on_thread(d_step), both);
          EXPECT_THAT(on_thread([&] { d_trainer.evaluate(6, 1, nothing); }), both);
          EXPECT_THAT(on_thread([&] { d_trainer.edit([] {}); }), both);
          EXPECT_THAT(on_thread([&] { d_trainer.load("nowhere"); }), both);
        }
        drawn = torch::rand({3});
        torch::manual_seed(shard.seed());
        EXPECT_TRUE(torch::equal(drawn, torch::rand({3})));
        return rows_of(shard, g, Batch(12, 1));
      });
      EXPECT_TRUE(result.applied);
      // One after the other, from whatever thread.
      EXPECT_EQ(on_thread([&] { EXPECT_TRUE(d_step().applied); }), "");
      EXPECT_TRUE(d_step().applied);
    });
  }
}

// findings-3: B11
TEST(TwoTrainers, InOneThreadTakeTurnsAndNest) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(3);
      auto g = mlp();
      auto d = mlp();
      Trainer g_trainer(job, *g, Sgd{.lr = 0.1}, {.shards = 6, .name = "generator"});
      Trainer d_trainer(job, *d, Sgd{.lr = 0.1}, {.shards = 6, .name = "discriminator"});
      const auto compute = [](torch::nn::Sequential& model) {
        return [&](Shard& shard) { return rows_of(shard, model, Batch(12, 1)); };
      };
      EXPECT_TRUE(g_trainer.step(compute(g)).applied);
      g_trainer.accumulate(compute(g));
      EXPECT_TRUE(d_trainer.step(compute(d)).applied);
      EXPECT_TRUE(g_trainer.apply().applied);
      EXPECT_TRUE(d_trainer.step(compute(d)).applied);
    });
  }
}

}  // namespace
}  // namespace tutti::test::two_trainers_cases
