// What closures do besides computing: they change parameters and buffers, leave modes behind, and
// call the Trainer that calls them. Whatever is refused is refused for any number of workers.

#include <set>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::trainer_closures_cases {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kShards = 6;
const Batch& batch() {
  static const Batch batch(24, 1);
  return batch;
}

torch::nn::Sequential with_norm() {
  torch::manual_seed(4);
  return torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5),
                               torch::nn::Linear(5, 3));
}

void decay(torch::nn::Sequential& model, std::size_t parameter) {
  const torch::NoGradGuard no_grad;
  model->parameters()[parameter].mul_(0.9);
}

/// A way in which shards change a parameter, and the name of that.
struct Change {
  const char* parameter;
  std::function<ShardAnswer(Shard&, torch::nn::Sequential&)> compute;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {"2.weight",
       [](Shard& shard, torch::nn::Sequential& model) {
         if (shard.step() == 3) decay(model, 2);
         return rows_of(shard, model, batch());
       }},
      // Once forward has read it, by one shard alone.
      {"2.bias",
       [](Shard& shard, torch::nn::Sequential& model) {
         auto answer = rows_of(shard, model, batch());
         if (shard.step() == 3 && shard.index() == kShards - 1) decay(model, 3);
         return answer;
       }},
      // In the backward, which the Trainer runs.
      {"2.bias",
       [](Shard& shard, torch::nn::Sequential& model) {
         auto loss = batch().loss(model, 0, 4);
         if (shard.step() == 3) {
           loss.register_hook([weights = model->parameters()](const torch::Tensor&) {
             const torch::NoGradGuard no_grad;
             weights[3].detach().mul_(0.9);
           });
         }
         return shard.loss(loss);
       }},
      {"0.bias", [](Shard& shard, torch::nn::Sequential& model) {
         if (shard.step() == 3) model->parameters()[1].set_data(torch::zeros({17}));
         return rows_of(shard, model, batch());
       }}};
  return all;
}

// findings-3: B6
TEST(TrainerClosures, AParameterThatAShardChangesIsNamedOnAnyNumberOfWorkers) {
  for (const auto& change : changes()) {
    for (const int workers : {1, 2, 3}) {
      on_workers(workers, [&](const Job& job) {
        torch::manual_seed(3);
        auto model = mlp();
        Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards, .desync_check_every = 0});
        const auto step = [&] {
          trainer.step([&](Shard& shard) { return change.compute(shard, model); });
        };
        step();
        step();
        const auto text = text_of(step);
        EXPECT_THAT(text, AllOf(HasSubstr(std::string("parameter \"") + change.parameter + "\""),
                                HasSubstr("shard "), HasSubstr("trainer.edit()")));
        EXPECT_EQ(trainer.steps(), 2);
        trainer.group().barrier();
        // Again, until the values are known ones.
        EXPECT_NE(text_of(step), "");
      });
    }
  }
}

// findings-3: B6
TEST(TrainerClosures, AParameterThatIsChangedBetweenTheHalvesDropsTheStep) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards});
      const auto before = model->parameters()[0].detach().clone();
      trainer.accumulate([&](Shard& shard) { return rows_of(shard, model, batch()); });
      if (job.rank() == workers - 1) decay(model, 2);
      const auto apply = [&] { trainer.apply(); };
      EXPECT_THAT(
          job.rank() == workers - 1 ? text_of<InvalidArgument>(apply) : text_of<PeerFailed>(apply),
          HasSubstr("parameter \"2.weight\""));
      EXPECT_EQ(trainer.steps(), 0);
      EXPECT_TRUE(torch::equal(model->parameters()[0], before));
    });
  }
}

// What a closure has changed depends on who computes what: edit() takes it over only where it is
// written anew.
// findings-3: B6
TEST(TrainerClosures, WhatAClosureChangedIsNotTakenOverByEdit) {
  for (const int workers : {1, 2, 3}) {
    const auto results = text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards});
      const auto nothing = [](const std::vector<std::int64_t>&, ShardMetrics&) {};
      EXPECT_NE(text_of([&] {
                  trainer.step([&](Shard& shard) {
                    if (shard.index() % 2 == 1) decay(model, 2);
                    return rows_of(shard, model, batch());
                  });
                }),
                "");
      const auto refused = AllOf(HasSubstr("\"2.weight\""), HasSubstr("write its values anew"));
      EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.edit([] {}); }), refused);
      EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.edit([&] { decay(model, 0); }); }),
                  refused);
      EXPECT_NE(text_of([&] { trainer.evaluate(9, 2, nothing); }), "");
      EXPECT_NE(text_of([&] {
                  trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); });
                }),
                "");
      trainer.edit([&] {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) parameter.fill_(0.5);
      });
      trainer.evaluate(9, 2, nothing);
      EXPECT_TRUE(
          trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); }).applied);
      return trainer.state_sha256();
    });
    EXPECT_NE(results, "");
  }
}

// findings-3: B13
TEST(TrainerClosures, AnEvaluationWithANormInTrainDependsOnNoOtherBatch) {
  std::set<std::string> results;
  for (const int workers : {1, 2, 3}) {
    results.insert(text_of_rank_0(workers, [&](const Job& job) {
      auto model = with_norm();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards});
      const auto step = [&] {
        return trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); });
      };
      step();
      const auto before = trainer.state_sha256();
      const auto metrics = trainer.evaluate(24, 3, [&](const auto& samples, auto& metrics) {
        EXPECT_FALSE(model->is_training());
        model->train();  // and leaves it so
        const auto y = model->forward(batch().x.index_select(0, torch::tensor(samples)));
        metrics.sum("y", y.square().sum().template item<double>());
        metrics.sum("mean", model[1]
                                ->template as<torch::nn::BatchNorm1d>()
                                ->running_mean.sum()
                                .template item<double>());
      });
      EXPECT_TRUE(model->is_training());
      // Nobody's statistics are left, and none are taken over.
      EXPECT_EQ(trainer.state_sha256(), before);
      trainer.edit([] {});
      EXPECT_EQ(trainer.state_sha256(), before);
      EXPECT_TRUE(step().applied);
      return fmt::format("{} {} {}", metrics["y"], metrics["mean"], trainer.state_sha256());
    }));
  }
  EXPECT_EQ(results.size(), 1U);
}

// findings-3: B13
TEST(TrainerClosures, AnEvaluationThatChangesParametersIsRefusedOnAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      auto model = with_norm();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards});
      const auto adapt = [&](std::int64_t first) {
        trainer.evaluate(24, 3, [&](const auto& samples, auto& metrics) {
          if (samples.front() == first) decay(model, 4);
          metrics.sum("n", 1);
        });
      };
      // The last batch is the last worker's.
      const auto last = [&] { adapt(21); };
      EXPECT_THAT(
          job.rank() == workers - 1 ? text_of<InvalidArgument>(last) : text_of<PeerFailed>(last),
          AllOf(HasSubstr("parameter \"2.weight\""), HasSubstr("evaluate()")));
      EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.edit([] {}); }),
                  AllOf(HasSubstr("\"2.weight\""), HasSubstr("write its values anew")));
      trainer.edit([&] {
        const torch::NoGradGuard no_grad;
        model->parameters()[4].fill_(1);
      });
      EXPECT_TRUE(
          trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); }).applied);
    });
  }
}

// Each worker's batches saw what its own forward passes in train() had left between steps.
// findings-3: B13
TEST(TrainerClosures, AnEvaluationOfOtherBuffersOnOneWorkerIsRefused) {
  for (const int workers : {2, 3}) {
    on_workers(workers, [&](const Job& job) {
      auto model = with_norm();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards});
      const auto evaluate = [&] {
        trainer.evaluate(24, 3, [](const auto&, ShardMetrics& sums) { sums.sum("n", 1); });
      };
      evaluate();
      if (job.rank() == 1) model->forward(batch().x);  // moves its statistics
      EXPECT_THAT(text_of<InvalidArgument>(evaluate), HasSubstr("have other buffers"));
    });
  }
}

struct Call {
  const char* what;
  std::function<void(Trainer&)> call;
};

std::vector<Call> calls(double& kept) {
  const auto nothing = [](Shard& shard) { return shard.nothing(); };
  return {
      {"a step of \"model\"", [=](Trainer& trainer) { trainer.step(nothing); }},
      {"a step of \"model\"", [=](Trainer& trainer) { trainer.accumulate(nothing); }},
      {"evaluate()",
       [](Trainer& trainer) { trainer.evaluate(4, 2, [](const auto&, ShardMetrics&) {}); }},
      {"edit()", [](Trainer& trainer) { trainer.edit([] {}); }},
      {"save()", [](Trainer& trainer) { trainer.save("nowhere"); }},
      {"load()", [](Trainer& trainer) { trainer.load("nowhere"); }},
      {"keep(\"x\")", [&kept](Trainer& trainer) { trainer.keep("x", kept); }},
      {"with_ema()", [](Trainer& trainer) { trainer.with_ema([] {}); }},
      {"with_logical_worker()", [](Trainer& trainer) { trainer.with_logical_worker(0, [] {}); }},
  };
}

// findings-3: C8
TEST(TrainerClosures, ACallOfTheTrainerInAShardSaysWhereItBelongs) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      double kept = 0;
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards, .ema_decay = 0.5});
      const auto before = trainer.state_sha256();
      for (const auto& [what, call] : calls(kept)) {
        EXPECT_THAT(text_of<InvalidArgument>([&] {
                      trainer.step([&](Shard& shard) {
                        call(trainer);
                        return rows_of(shard, model, batch());
                      });
                    }),
                    AllOf(HasSubstr(std::string(what) + " in shard "),
                          HasSubstr("call it between steps"), Not(HasSubstr("defect"))))
            << what;
        EXPECT_EQ(trainer.state_sha256(), before);
      }
      EXPECT_TRUE(
          trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); }).applied);
    });
  }
}

// findings-3: C8
TEST(TrainerClosures, ACallOfTheTrainerInAnEvaluationOrEditSaysWhereItBelongs) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      double kept = 0;
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards, .ema_decay = 0.5});
      for (const auto& [what, call] : calls(kept)) {
        EXPECT_THAT(text_of([&] {
                      trainer.evaluate(kShards, 1, [&](const auto&, auto&) { call(trainer); });
                    }),
                    AllOf(HasSubstr(std::string(what) + " in evaluate() of Trainer \"model\""),
                          HasSubstr("call it between steps"), Not(HasSubstr("defect"))))
            << what;
        EXPECT_THAT(text_of([&] { trainer.edit([&] { call(trainer); }); }),
                    AllOf(HasSubstr(std::string(what) + " in edit() of Trainer \"model\""),
                          HasSubstr("call it between steps"), Not(HasSubstr("defect"))))
            << what;
      }
      EXPECT_TRUE(
          trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); }).applied);
    });
  }
}

/// What it trains would depend on how many shards a worker has.
TEST(TrainerClosures, ACallThatTrainsAnotherModelSaysWhereItBelongs) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      auto other = mlp();
      auto third = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = kShards, .audit_every = 0});
      Trainer another(job, *other, Sgd{.lr = 0.1}, {.shards = kShards, .name = "other"});
      DataParallel parallel(job, *third, {.name = "third"});
      const auto before = another.state_sha256();
      const auto values = parameters_sha256(*third);
      const auto refused = [&](const std::function<void(Shard&)>& call) {
        return text_of<InvalidArgument>([&] {
          trainer.step([&](Shard& shard) {
            call(shard);
            return rows_of(shard, model, batch());
          });
        });
      };
      EXPECT_THAT(refused([&](Shard&) {
                    another.step([&](Shard& shard) { return rows_of(shard, other, batch()); });
                  }),
                  AllOf(HasSubstr("a step of \"other\" in shard "),
                        HasSubstr("of Trainer \"model\""), HasSubstr("call it between steps")));
      EXPECT_THAT(refused([&](Shard&) { batch().loss(third, 0, 4).backward(); }),
                  HasSubstr("a step of \"third\" in shard "));
      EXPECT_THAT(refused([&](Shard&) { parallel.synchronize(); }),
                  HasSubstr("a step of \"third\" in shard "));
      EXPECT_THAT(text_of<InvalidArgument>([&] {
                    trainer.evaluate(kShards, 1,
                                     [&](const auto&, auto&) { parallel.synchronize(); });
                  }),
                  HasSubstr("a step of \"third\" in evaluate()"));
      EXPECT_EQ(another.state_sha256(), before);
      EXPECT_EQ(parameters_sha256(*third), values);
      third->zero_grad();
      batch().loss(third, 0, 4).backward();
      EXPECT_TRUE(
          another.step([&](Shard& shard) { return rows_of(shard, other, batch()); }).applied);
      EXPECT_TRUE(
          trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); }).applied);
    });
  }
}

}  // namespace
}  // namespace tutti::test::trainer_closures_cases
