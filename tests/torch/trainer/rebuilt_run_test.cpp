// A Trainer's Run that is made anew from its World between steps: the training goes on as if
// nothing had been.

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "support/running_command.h"
#include "support/spread.h"
#include "torch/classes/trained_classifier.h"
#include "torch/trainer/trainer_state.h"
#include "torch/training.h"

namespace tutti::test::rebuilt_run_cases {
namespace {

using ::testing::HasSubstr;

void rebuild(Trainer& trainer) { TrainerState::of(trainer).rebuild(); }

torch::nn::Sequential net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6),
                               torch::nn::Dropout(0.3), torch::nn::Linear(6, 3));
}

struct Case {
  const char* name;
  Optimizer optimizer = Adam{.lr = 0.01};
  TrainerOptions options = {};
};

std::vector<Case> cases() {
  const auto biases = [](const std::string& name) { return name.ends_with("bias"); };
  return {
      {"dense"},
      {"torch's optimizer", torch_optimizer<torch::optim::RMSprop>(
                                torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true))},
      {"averages, schedule and loss scale",
       AdamW{.lr = 0.01},
       {.schedule = Schedule::cosine(6),
        .loss_scale = {.start = 8, .dynamic = true, .grow_after = 2},
        .ema_decay = 0.9}},
      {"residuals",
       Sgd{.lr = 0.1},
       {.compression = {.codec = top_k_codec(0.1)}, .logical_workers = 2}},
      {"per replica", Adam{.lr = 0.01}, {.logical_workers = 2, .per_replica = biases}},
      {"averaging in flight",
       Sgd{.lr = 0.1, .momentum = 0.9},
       {.logical_workers = 2, .averaging = diloco(3, {.warm_up = 1, .overlap = 2, .own = 0.25})}},
  };
}

/// What six steps have left: the state's hash, and that of what its hash leaves out.
std::string trained(const Job& job, const Case& one, bool rebuilds) {
  auto model = net();
  auto options = one.options;
  options.shards = 4;
  options.audit_every = 2;
  options.desync_check_every = 1;
  double kept = 0;
  Trainer trainer(job, *model, one.optimizer, options);
  trainer.keep("kept", kept);
  const Batch batch(24, 7);
  std::string said;
  for (int step = 0; step < 6; ++step) {
    const auto result = trainer.step([&](Shard& shard) {
      const auto rows = shard.indices(24, 3);
      if (rows.empty()) return shard.nothing();
      auto carried = shard.state("carried", [] { return torch::zeros({1}); });
      carried.add_(1 + static_cast<double>(shard.index()));
      const auto at = torch::tensor(rows);
      const auto loss =
          torch::mse_loss(model->forward(batch.x.index_select(0, at)), batch.y.index_select(0, at));
      return shard.loss(loss * carried.item<double>(), static_cast<double>(rows.size()));
    });
    kept += result.loss;
    said += fmt::format("{} {} {} {}\n", result.loss, result.loss_scale, result.rate_factor,
                        trainer.epoch());
    if (rebuilds) rebuild(trainer);
    if (options.ema_decay > 0) {
      trainer.with_ema([&] { said += parameters_sha256(*model) + "\n"; });
    }
    said += trainer.state_sha256() + "\n";
  }
  return said;
}

TEST(RebuiltRun, EndsInTheSameBytes) {
  for (const auto& one : cases()) {
    const auto whole = text_of_rank_0(1, [&](const Job& job) { return trained(job, one, false); });
    for (const int workers : {1, 2, 3}) {
      EXPECT_EQ(text_of_rank_0(workers, [&](const Job& job) { return trained(job, one, true); }),
                whole)
          << one.name << " on " << workers;
    }
  }
}

/// Each host has its own copy of parameters, and replicas of logical workers that others lack.
TEST(RebuiltRun, EndsInTheSameBytesOnTwoHosts) {
  for (const auto& one : cases()) {
    const auto whole = text_of_rank_0(1, [&](const Job& job) { return trained(job, one, false); });
    const Spread spread(2);
    EXPECT_EQ(text_of_rank_0(4, [&](const Job& job) { return trained(job, one, true); }), whole)
        << one.name;
  }
}

/// The layer lies in the module.
TEST(RebuiltRun, LeavesASplitClassifierWhereItIs) {
  const auto train = [](const Job& job, bool rebuilds) {
    namespace trained = classifier_cases::trained;
    const Group group(job);
    auto model = std::make_shared<trained::Net>(group, classifier_cases::Options{});
    Trainer trainer(group, *model, Sgd{.lr = 0.1}, {.shards = trained::kShards});
    for (int step = 0; step < 4; ++step) {
      trainer.step([&](Shard& shard) { return trained::answer_of(shard, *model); });
      if (rebuilds) rebuild(trainer);
    }
    return trainer.state_sha256();
  };
  const auto whole = text_of_rank_0(1, [&](const Job& job) { return train(job, false); });
  for (const int workers : {1, 2, 3}) {
    EXPECT_EQ(text_of_rank_0(workers, [&](const Job& job) { return train(job, true); }), whole);
  }
}

/// What belongs to the World is neither copied nor begun again.
TEST(RebuiltRun, LeavesParametersAndTheStepLogWhereTheyAre) {
  const TemporaryFolder folder;
  const auto log = folder.file("steps.jsonl");
  on_workers(2, [&](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Adam{.lr = 0.01}, {.shards = 2, .log = log, .metrics_every = 1});
    const Batch batch(8, 7);
    const auto* const place = model->parameters().front().data_ptr();
    for (int step = 0; step < 3; ++step) {
      trainer.step([&](Shard& shard) { return rows_of(shard, model, batch); });
      rebuild(trainer);
      EXPECT_EQ(model->parameters().front().data_ptr(), place);
    }
    EXPECT_EQ(trainer.traffic().steps, 0);
  });
  std::ifstream file(log);
  int headers = 0;
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    if (line.find("\"format\"") != std::string::npos) ++headers;
  }
  EXPECT_EQ(headers, 1);
  EXPECT_EQ(lines, 4);
}

/// A value that is one worker's alone would be lost, or become all workers'.
TEST(RebuiltRun, IsRefusedWhereAWorkerHasWrittenBetweenSteps) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    if (job.rank() == 1) {
      const torch::NoGradGuard no_grad;
      model->parameters().front().mul_(2);
    }
    EXPECT_THAT(text_of([&] { rebuild(trainer); }),
                HasSubstr("parameter \"0.weight\" was written between steps"));
  });
}

TEST(RebuiltRun, IsRefusedBetweenTheHalvesOfAStep) {
  on_workers(1, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const Batch batch(8, 7);
    trainer.accumulate([&](Shard& shard) { return rows_of(shard, model, batch); });
    EXPECT_THAT(text_of([&] { rebuild(trainer); }), HasSubstr("rebuild()"));
    EXPECT_TRUE(trainer.apply().applied);
  });
}

/// The World has no room for it.
TEST(RebuiltRun, IsRefusedWhereTheModelHasGrown) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    model->register_module("late", torch::nn::Linear(2, 2).ptr());
    EXPECT_THAT(text_of([&] { rebuild(trainer); }), HasSubstr("late.weight"));
  });
}

/// What the Trainer has ended with is the program's own error.
TEST(RebuiltRun, EndsTheTrainerWhereItCannotBeMade) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto asked = std::make_shared<bool>(false);
    Trainer trainer(
        job, *model, Sgd{.lr = 0.1},
        {.shards = 2, .logical_workers = 2, .per_replica = [asked](const std::string& name) {
           if (*asked) throw std::runtime_error("asked again");
           return name.ends_with("bias");
         }});
    const Batch batch(8, 7);
    const auto step = [&] {
      trainer.step([&](Shard& shard) { return rows_of(shard, model, batch); });
    };
    step();
    *asked = true;
    EXPECT_THROW(rebuild(trainer), std::runtime_error);
    EXPECT_THAT(text_of(step), HasSubstr("Trainer \"model\" has ended"));
    EXPECT_THAT(text_of([&] { trainer.state_sha256(); }), HasSubstr("has ended"));
  });
}

/// The model is the program's again afterwards, wherever its Run was made.
TEST(RebuiltRun, EndsWithItsTrainer) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    std::optional<Trainer> trainer(std::in_place, job, *model, Sgd{.lr = 0.1},
                                   TrainerOptions{.shards = 2});
    const auto* const shared = model->parameters().front().data_ptr();
    rebuild(*trainer);
    trainer.reset();
    EXPECT_NE(model->parameters().front().data_ptr(), shared);
    Trainer next(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const Batch batch(8, 7);
    EXPECT_TRUE(next.step([&](Shard& shard) { return rows_of(shard, model, batch); }).applied);
  });
}

}  // namespace
}  // namespace tutti::test::rebuilt_run_cases
