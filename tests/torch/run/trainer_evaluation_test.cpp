// Evaluation with a Trainer: metrics of a data set on any number of workers, averaged parameters.

#include <set>

#include "torch/training.h"

namespace tutti::test::trainer_evaluation_cases {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 70), torch::nn::BatchNorm1d(70),
                               torch::nn::Dropout(0.5), torch::nn::Linear(70, 3));
}

ShardAnswer some_loss(Shard& shard, torch::nn::Sequential& model) {
  return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not, trainer.h#Evaluate
TEST(TrainerEvaluation, MetricsOfADataSetAreTheSameBytesOnAnyNumberOfWorkers) {
  const auto inputs = torch::randn({103, 6}, at::make_generator<at::CPUGeneratorImpl>(5));
  std::set<std::string> results;
  for (const int workers : {1, 2, 5}) {
    results.insert(text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(2);
      auto model = net();
      model[2]->eval();  // stays so
      Trainer trainer(job, *model, Adam{}, {.shards = 2, .seed = 3});
      std::vector<std::int64_t> seen;
      const auto metrics = trainer.evaluate(103, 10, [&](const auto& samples, auto& metrics) {
        seen.insert(seen.end(), samples.begin(), samples.end());
        EXPECT_FALSE(model->is_training());
        EXPECT_FALSE(torch::GradMode::is_enabled());
        const auto value = model->forward(inputs.index_select(0, torch::tensor(samples))) +
                           torch::randn({1});  // the user's own draws
        metrics.weighted_mean("value", value.mean().template item<double>(),
                              static_cast<double>(samples.size()));
        metrics.sum("samples", static_cast<double>(samples.size()));
        metrics.gather("first", static_cast<double>(samples.front()));
      });
      EXPECT_TRUE(model->is_training());
      EXPECT_TRUE(model[1]->is_training());
      EXPECT_FALSE(model[2]->is_training());
      EXPECT_EQ(metrics["samples"], 103);
      EXPECT_EQ(metrics.gathered("first").size(), 11u);
      EXPECT_EQ(metrics.gathered("first")[10], 100);
      auto count = static_cast<std::int64_t>(seen.size());
      trainer.group().all_reduce({&count, 1, DType::int64}, Reduction::sum);
      EXPECT_EQ(count, 103);
      // Training goes on as if nothing had been.
      trainer.step([&](Shard& shard) { return some_loss(shard, model); });
      return std::to_string(metrics["value"]) + trainer.state_sha256();
    }));
  }
  EXPECT_EQ(results.size(), 1u);
}

// promise: trainer.h#Evaluate
TEST(TrainerEvaluation, LeavesTorchsGeneratorWhereStepsLeaveIt) {
  on_workers(2, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .seed = 3});
    trainer.step([&](Shard& shard) { return some_loss(shard, model); });
    const auto between = at::detail::getDefaultCPUGenerator().get_state();
    trainer.evaluate(7, 2, [&](const auto&, auto& metrics) {
      metrics.sum("drawn", torch::randn({3}).sum().template item<double>());
    });
    EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), between));
    // Each batch draws its own, whoever computes it: other batches, other numbers.
    const auto draws = trainer.evaluate(7, 2, [&](const auto&, auto& metrics) {
      metrics.gather("drawn", torch::randn({1}).template item<double>());
    });
    const auto numbers = draws.gathered("drawn");
    EXPECT_EQ(std::set<double>(numbers.begin(), numbers.end()).size(), 4U);
  });
}

TEST(TrainerEvaluation, WorkersThatAskInDifferentWaysAreNamed) {
  on_workers(2, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    const auto nothing = [](const std::vector<std::int64_t>&, ShardMetrics&) {};
    EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.evaluate(20 + job.rank(), 5, nothing); }),
                ::testing::AllOf(HasSubstr("21 "), HasSubstr("20 "), HasSubstr("in batches of 5")));
    const auto empty = text_of<Error>([&] { trainer.evaluate(20 * job.rank(), 5, nothing); });
    EXPECT_THAT(empty, HasSubstr("0 samples in batches of 5"));
  });
}

TEST(TrainerEvaluation, InsideAStepOrItselfItIsRefused) {
  on_workers(2, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .audit_every = 0});
    const auto nothing = [](const std::vector<std::int64_t>&, ShardMetrics&) {};
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  trainer.step([&](Shard& shard) {
                    trainer.evaluate(10, 5, nothing);
                    return some_loss(shard, model);
                  });
                }),
                HasSubstr("evaluate() in shard"));
    EXPECT_THAT(text_of<Error>([&] {
                  trainer.evaluate(10, 5,
                                   [&](const auto&, auto&) { trainer.evaluate(9, 5, nothing); });
                }),
                HasSubstr("evaluate() in evaluate()"));
    trainer.evaluate(10, 5, nothing);
  });
}

// Rank 0 alone loaded the best model before the last evaluation: metrics of two models were mixed.
TEST(TrainerEvaluation, OfWorkersWithDifferentModelsIsRefused) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    auto best = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    const auto evaluate = [&] {
      trainer.evaluate(10, 5, [](const auto&, ShardMetrics& sums) { sums.sum("n", 1); });
    };
    const auto load = [&] {
      for (std::size_t p = 0; p < best->parameters().size(); ++p) {
        model->parameters()[p].set_data(best->parameters()[p].detach().clone());
      }
    };
    if (job.rank() == 0) load();
    EXPECT_THAT(text_of<InvalidArgument>(evaluate), HasSubstr("have other parameters"));
    if (job.rank() == 1) load();
    evaluate();  // the same on all
  });
}

// promise: trainer.h#Evaluate
TEST(TrainerEvaluation, AFailureIsSaidOnAllAndTrainingGoesOn) {
  on_workers(3, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 3});
    const auto evaluate = [&] {
      trainer.evaluate(30, 10, [](const auto& samples, auto&) {
        if (samples.front() == 10) throw std::runtime_error("no such file");
      });
    };
    if (job.rank() == 1) {
      EXPECT_EQ(text_of<std::runtime_error>(evaluate), "no such file");
    } else {
      EXPECT_EQ(text_of<PeerFailed>(evaluate), "evaluate(): rank 1 failed: no such file");
    }
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { trainer.evaluate(30, 0, [](const auto&, auto&) {}); }),
        HasSubstr("30 samples in batches of 0"));
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return some_loss(shard, model); }).applied);
  });
}

// promise: trainer.h#with_ema, trainer_options.h#ema_decay
TEST(TrainerEvaluation, AveragesFollowTheParametersAndAreSwappedInAndOut) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    on_workers(3, [&](const Job& job) {
      auto model = mlp();
      model->to(type);
      Trainer trainer(job, *model, Sgd{.lr = 0.5}, {.shards = 4, .ema_decay = 0.75});
      EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.with_ema([] {}); }),
                  HasSubstr("before the first step"));
      std::vector<torch::Tensor> expected;
      for (int step = 0; step < 4; ++step) {
        trainer.step([&](Shard& shard) {
          return shard.loss(model->forward(torch::randn({4, 6}).to(type)).square().mean());
        });
        const auto parameters = model->parameters();
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          if (step == 0) {
            expected.push_back(parameters[p].detach().clone());
          } else {
            expected[p] = 0.75 * expected[p] + 0.25 * parameters[p].detach();
          }
        }
        trainer.group().barrier();
      }
      const auto before = trainer.state_sha256();
      trainer.with_ema([&] {
        const auto parameters = model->parameters();
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          EXPECT_TRUE(torch::allclose(parameters[p], expected[p].to(type), 1e-2, 1e-2));
        }
        EXPECT_NE(trainer.state_sha256(), before);
        trainer.evaluate(4, 1, [&](const auto&, auto& metrics) {
          metrics.sum("x",
                      model->forward(torch::ones({1, 6}).to(type)).sum().template item<float>());
        });
        const std::pair<const char*, std::function<void()>> calls[] = {
            {"save()", [&] { trainer.save("nowhere"); }},
            {"load()", [&] { trainer.load("nowhere"); }},
            {"edit()", [&] { trainer.edit([] {}); }},
            {"accumulate()", [&] { trainer.step([](Shard& shard) { return shard.nothing(); }); }}};
        for (const auto& [name, call] : calls) {
          EXPECT_THAT(text_of<InvalidArgument>(call),
                      HasSubstr(std::string(name) + " inside with_ema()"));
        }
      });
      EXPECT_EQ(trainer.state_sha256(), before);
      EXPECT_TRUE(
          trainer
              .step([&](Shard& shard) {
                return shard.loss(model->forward(torch::randn({4, 6}).to(type)).square().mean());
              })
              .applied);
    });
  }
}

}  // namespace
}  // namespace tutti::test::trainer_evaluation_cases
