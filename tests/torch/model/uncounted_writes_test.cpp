// What is written to parameters in ways that torch does not count is found in time.

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::uncounted_writes_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ShardAnswer loss_of(Shard& shard, torch::nn::Sequential& model, std::uint64_t step) {
  const auto type = model->parameters()[0].scalar_type();
  const Batch batch(12, step);
  const auto [begin, end] = share_of(12, shard.index(), shard.count());
  const auto y = model->forward(batch.x.slice(0, begin, end).to(type));
  return shard.loss(torch::mse_loss(y, batch.y.slice(0, begin, end).to(type)));
}

/// The text of the step at which it is found, and that step.
struct Found {
  std::string text;
  std::int64_t step = 0;
};

Found train(const Job& job, torch::ScalarType type, TrainerOptions options,
            const std::function<void(torch::Tensor&)>& change, std::int64_t steps = 9) {
  torch::manual_seed(3);
  auto model = mlp();
  model->to(type);
  options.shards = 3;
  Trainer trainer(job, *model, Adam{.lr = 0.1}, options);
  auto weight = model->parameters()[2];
  Found found;
  while (trainer.steps() < steps) {
    const auto before = trainer.steps();
    try {
      trainer.step([&](Shard& shard) {
        return loss_of(shard, model, static_cast<std::uint64_t>(shard.step()));
      });
      change(weight);
    } catch (const Error& error) {
      found = {error.what(), trainer.steps() + 1};
      EXPECT_EQ(trainer.steps(), before);
      // Again, until an edit() takes it over.
      EXPECT_THAT(
          text_of([&] { trainer.step([&](Shard& shard) { return loss_of(shard, model, 1); }); }),
          HasSubstr("\"2.weight\""));
      trainer.edit([] {});
      EXPECT_TRUE(trainer.step([&](Shard& shard) { return loss_of(shard, model, 1); }).applied);
      break;
    }
  }
  return found;
}

// promise: trainer_options.h#desync_check_every
TEST(UncountedWrites, DecayThroughDataIsFoundInTheSecondStepOnAnyNumberOfWorkers) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const int workers : {1, 2, 3}) {
      on_workers(workers, [&](const Job& job) {
        const auto found = train(job, type, {}, [](torch::Tensor& p) { p.data().mul_(0.9); });
        EXPECT_EQ(found.step, 2);
        EXPECT_THAT(found.text, AllOf(HasSubstr("parameter \"2.weight\" of \"model\""),
                                      HasSubstr("trainer.edit()")));
      });
    }
  }
}

// promise: trainer_options.h#desync_check_every
TEST(UncountedWrites, OneThatComesLateIsFoundInTheNextStepThatIsLookedAt) {
  for (const int workers : {1, 3}) {
    on_workers(workers, [&](const Job& job) {
      int calls = 0;
      const auto found =
          train(job, torch::kFloat32, {.desync_check_every = 3}, [&](torch::Tensor& p) {
            // By one worker alone, to an element that need not be of its share.
            if (++calls == 5 && job.rank() == job.size() - 1) {
              static_cast<float*>(p.data_ptr())[0] += 1;
            }
          });
      EXPECT_EQ(found.step, 6);
      EXPECT_THAT(found.text, HasSubstr("parameter \"2.weight\""));
    });
  }
}

// promise: trainer_options.h#desync_check_every
TEST(UncountedWrites, OneBeforeStep64IsFoundThere) {
  on_workers(2, [](const Job& job) {
    int calls = 0;
    const auto found = train(
        job, torch::kFloat32, {},
        [&](torch::Tensor& p) {
          if (++calls == 63 && job.rank() == 1) static_cast<float*>(p.data_ptr())[0] += 1;
        },
        99);
    EXPECT_EQ(found.step, 64);
    EXPECT_THAT(found.text, HasSubstr("parameter \"2.weight\""));
  });
}

TEST(UncountedWrites, ByAShardAndToPrivateParametersToo) {
  for (const int workers : {1, 2}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      Trainer trainer(job, *model, Adam{.lr = 0.1},
                      {.shards = 4,
                       .logical_workers = 2,
                       .per_replica = [](const std::string& name) { return name == "2.weight"; }});
      std::int64_t writer = -1;
      const auto step = [&] {
        trainer.step([&](Shard& shard) {
          // Once forward has read it: a backward does not notice either.
          auto answer = loss_of(shard, model, 1);
          if (shard.index() == writer) model->parameters()[2].data().add_(1);
          return answer;
        });
      };
      step();
      writer = 3;  // of the second logical worker
      EXPECT_THAT(text_of(step), HasSubstr("parameter \"2.weight\""));
      EXPECT_EQ(trainer.steps(), 1);
    });
  }
}

TEST(UncountedWrites, WhatTheTrainerItselfChangesBetweenStepsIsNone) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    on_workers(3, [&](const Job& job) {
      const TemporaryFolder folder;
      torch::manual_seed(3);
      auto model = mlp();
      model->to(type);
      Trainer trainer(job, *model, Adam{.lr = 0.1},
                      {.shards = 3, .ema_decay = 0.9, .desync_check_every = 1});
      const auto step = [&] {
        EXPECT_TRUE(trainer.step([&](Shard& shard) { return loss_of(shard, model, 1); }).applied);
      };
      step();
      trainer.with_ema([] {});
      step();
      trainer.edit([&] {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) parameter.data().mul_(0.5);
      });
      step();
      trainer.accumulate([&](Shard& shard) { return loss_of(shard, model, 1); });
      trainer.apply();
      EXPECT_EQ(trainer.steps(), 4);
    });
  }
}

TEST(UncountedWrites, ALoadIsNone) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    torch::manual_seed(3);
    auto model = mlp();
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 3, .desync_check_every = 2});
    const auto step = [&] {
      EXPECT_TRUE(trainer.step([&](Shard& shard) { return loss_of(shard, model, 1); }).applied);
    };
    step();
    trainer.save(folder.file("run"));
    step();
    step();
    EXPECT_EQ(trainer.load(folder.file("run")), 1);
    step();
    EXPECT_EQ(trainer.steps(), 2);
  });
}

// promise: trainer_options.h#desync_check_every
TEST(UncountedWrites, NobodyLooksWhereNobodyAskedTo) {
  on_workers(1, [](const Job& job) {
    const auto found = train(job, torch::kFloat32, {.desync_check_every = 0},
                             [](torch::Tensor& p) { p.data().mul_(1); });
    EXPECT_EQ(found.text, "");
    EXPECT_EQ(train(job, torch::kFloat32, {.desync_check_every = 0},
                    [](torch::Tensor& p) { p.data().mul_(0.9); })
                  .text,
              "");
  });
}

}  // namespace
}  // namespace tutti::test::uncounted_writes_cases
