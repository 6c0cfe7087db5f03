// Steps that the Trainer drops, and what it refuses or finds changed behind its back.

#include <cmath>
#include <limits>
#include <stdexcept>

#include "job/job_state.h"
#include "job/rendezvous/thread_rendezvous.h"
#include "memory/stub_system.h"
#include "torch/training.h"

namespace tutti::test::trainer_refusals_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// promise: error.h#Diverged, trainer.h#StepResult, trainer_options.h#max_consecutive_drops
TEST(TrainerRefusals, AGradientThatIsNotFiniteDropsTheStepEverywhere) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    on_workers(3, [&](const Job& job) {
      auto model = mlp();
      Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 5, .max_consecutive_drops = 2});
      const auto step = [&](std::int64_t from) {
        return trainer.step([&](Shard& shard) {
          const Batch batch(4, 1);
          auto loss = batch.loss(model, 0, 4);
          if (shard.index() >= from) loss = loss * bad;
          return shard.loss(loss);
        });
      };
      const auto before = trainer.state_sha256();
      const auto result = step(3);
      EXPECT_FALSE(result.applied);
      EXPECT_THAT(result.dropped_because,
                  AllOf(HasSubstr("the gradient of \""), HasSubstr("\" in shard 3 is not finite")));
      EXPECT_EQ(trainer.state_sha256(), before);
      EXPECT_TRUE(step(5).applied);
      EXPECT_FALSE(step(0).applied);
      EXPECT_THAT(text_of<Diverged>([&] { step(0); }),
                  HasSubstr("2 steps in succession were dropped, the last one (step 4)"));
      EXPECT_EQ(trainer.steps(), 4);
    });
  }
}

TEST(TrainerRefusals, ASumOfFiniteGradientsThatOverflowsIsFound) {
  on_workers(2, [](const Job& job) {
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    Trainer trainer(job, *model, Sgd{.lr = 1}, {.shards = 2});
    const auto before = model->weight.clone();
    const auto step = [&](float factor) {
      return trainer.step([&](Shard& shard) {
        return shard.loss((model->forward(torch::ones({1, 1})) * factor).sum());
      });
    };
    EXPECT_EQ(step(3e38F).dropped_because, "the sum of the gradients of \"weight\" is not finite");
    EXPECT_TRUE(torch::equal(model->weight, before));
    // Close to the limit without going beyond it: folded before it is judged, and applied.
    EXPECT_TRUE(step(1.6e38F).applied);
  });
}

// promise: trainer.h#loss
TEST(TrainerRefusals, WithoutAnyWeightNothingHappens) {
  on_workers(2, [](const Job& job) {
    auto model = torch::nn::Sequential(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
    Trainer trainer(job, *model, Adam{}, {.shards = 3});
    const auto before = trainer.state_sha256();
    const auto result = trainer.step([&](Shard& shard) {
      // An empty mean is NaN: it must not get in.
      const auto mean = model->forward(torch::randn({4, 6})).slice(0, 0, 0).mean();
      return shard.loss(mean, 0);
    });
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(result.dropped_because, "every shard returned nothing() or the weight 0");
    EXPECT_TRUE(std::isnan(result.loss));
    EXPECT_EQ(trainer.state_sha256(), before);
  });
}

// promise: trainer.h#Trainer, trainer.h#step
TEST(TrainerRefusals, AShardThatThrowsChangesNothingAndTheStepIsRepeated) {
  on_workers(3, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 3, .seed = 1});
    const auto before = trainer.state_sha256();
    std::vector<std::int64_t> asked;
    const auto step = [&](std::int64_t thrower) {
      return trainer.step([&](Shard& shard) {
        const auto samples = shard.indices(30, 4);
        if (!shard.is_audit()) asked = samples;
        if (shard.index() == thrower) throw std::runtime_error("the disk is gone");
        return rows_of(shard, model, Batch(9, 1));
      });
    };
    if (job.rank() == 1) {
      EXPECT_EQ(text_of<std::runtime_error>([&] { step(1); }), "the disk is gone");
    } else {
      EXPECT_THAT(text_of<PeerFailed>([&] { step(1); }),
                  HasSubstr("rank 1 failed: the disk is gone"));
    }
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_EQ(trainer.steps(), 0);
    const auto first = asked;
    EXPECT_EQ(step(-1).step, 1);
    EXPECT_EQ(asked, first);
    EXPECT_EQ(step(-1).step, 2);
    EXPECT_NE(asked, first);
  });
}

// promise: trainer.h#indices
TEST(TrainerRefusals, ShardsThatAskForDataInDifferentWaysAreNamed) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    EXPECT_THAT(
        text_of<InvalidArgument>([&] {
          trainer.step([&](Shard& shard) {
            shard.indices(20, 3 + shard.index());
            return rows_of(shard, model, Batch(9, 1));
          });
        }),
        HasSubstr("rank 1 asks for 4 of 20 samples per shard, a rank before it for 3 of 20"));
  });
}

// The gradient was the second loss' alone, and the recorded loss the mean of both.
// promise: trainer.h#loss
TEST(TrainerRefusals, AShardThatAnswersTwiceIsTold) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const Batch batch(4, 1);
    const auto before = trainer.state_sha256();
    const auto refusal = [&](const Trainer::Compute& compute) {
      return text_of<InvalidArgument>([&] { trainer.step(compute); });
    };
    const auto loss = [&] { return batch.loss(model, 0, 4); };
    const double loss_before = loss().item<double>();
    EXPECT_THAT(refusal([&](Shard& shard) {
                  shard.loss(loss());
                  return shard.loss(loss());
                }),
                HasSubstr(": loss() after loss(): a shard has one answer"));
    EXPECT_THAT(refusal([&](Shard& shard) {
                  shard.loss(loss());
                  return shard.gradients({});
                }),
                HasSubstr(": gradients() after loss()"));
    EXPECT_EQ(trainer.state_sha256(), before);
    // A loss that is not returned leaves no trace; nothing() may be thought better of.
    const auto half = trainer.step([&](Shard& shard) {
      auto answer = shard.nothing();
      const auto of_shard = shard.loss(loss());
      if (shard.index() == 0) answer = of_shard;
      return answer;
    });
    EXPECT_TRUE(half.applied);
    EXPECT_EQ(half.weight, 1);
    EXPECT_EQ(half.metrics["loss"], loss_before);
  });
}

// promise: error.h#InvalidArgument, trainer.h#indices
TEST(TrainerRefusals, ShardsThatDoNotAskWhereOthersDoWouldLoseTheirSamples) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3});
    const auto step = [&](std::int64_t silent) {
      trainer.step([&](Shard& shard) {
        if (shard.index() == silent) return shard.nothing();
        shard.indices(20, 3);
        shard.indices(20, 3);  // as often as it likes
        return rows_of(shard, model, Batch(9, 1));
      });
    };
    const auto before = trainer.state_sha256();
    for (const std::int64_t silent : {0, 2}) {
      EXPECT_THAT(text_of<InvalidArgument>([&] { step(silent); }),
                  HasSubstr("step 1: 2 of 3 shards asked for data"));
    }
    EXPECT_EQ(trainer.state_sha256(), before);
    step(-1);
    EXPECT_EQ(trainer.steps(), 1);
  });
}

TEST(TrainerRefusals, AParameterReplacedBetweenStepsIsNamed) {
  for (const bool added : {false, true}) {
    on_workers(2, [&](const Job& job) {
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
      const auto step = [&] {
        trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
      };
      step();
      step();
      if (job.rank() == 1) {
        if (added) {
          model->push_back(torch::nn::Linear(3, 3));
        } else {
          model->replace_module("0", torch::nn::Linear(6, 17).ptr());
        }
        EXPECT_THAT(text_of<InvalidArgument>(step),
                    HasSubstr(added ? "\"3.weight\" was added or replaced after Trainer"
                                    : "\"0.weight\" was added or replaced after Trainer"));
      } else {
        EXPECT_THAT(text_of<PeerFailed>(step), HasSubstr("was added or replaced"));
      }
    });
  }
}

TEST(TrainerRefusals, MemoryTakenFromUnderAParameterIsFound) {
  on_workers(1, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    model->parameters()[0].set_data(torch::zeros({17, 6}));
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
                }),
                HasSubstr("0.weight"));
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error, trainer.h#edit
TEST(TrainerRefusals, AParameterWrittenBetweenStepsIsFoundAndEditIsTheWay) {
  on_workers(2, [](const Job& job) {
    auto model = torch::nn::Sequential(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 2});
    const auto compute = [&](Shard& shard) {
      return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
    };
    auto weight = model->parameters()[0];
    auto mean = model[1]->as<torch::nn::BatchNorm1d>()->running_mean;
    trainer.edit([&] {
      const torch::NoGradGuard no_grad;
      weight.fill_(2);
      mean.fill_(3);
    });
    EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, 2)));
    EXPECT_TRUE(torch::equal(mean, torch::full_like(mean, 3)));
    trainer.group().barrier();
    trainer.step(compute);
    trainer.group().barrier();
    // Found where it was done, and said everywhere at once.
    const bool mine = job.rank() == 1;
    if (mine) weight.detach().fill_(1);
    const auto found = HasSubstr("parameter \"0.weight\" was written between steps");
    for (int again = 0; again < 2; ++again) {
      const auto step = [&] { trainer.step(compute); };
      EXPECT_THAT(mine ? text_of<InvalidArgument>(step) : text_of<PeerFailed>(step), found);
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.save("nowhere"); }), found);
    EXPECT_EQ(trainer.steps(), 1);
    trainer.edit([] {});  // takes it over
    EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, 1)));
    trainer.step(compute);
    EXPECT_EQ(trainer.steps(), 2);
  });
}

TEST(TrainerRefusals, ABufferChangedBetweenStepsIsFound) {
  on_workers(1, [](const Job& job) {
    auto model = torch::nn::Sequential(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 2});
    model->forward(torch::randn({4, 6}));  // in train(): moves the running statistics
    EXPECT_THAT(
        text_of<InvalidArgument>(
            [&] { trainer.step([&](Shard& shard) { return shard.nothing(); }); }),
        HasSubstr("buffer \"1.running_mean\" of Trainer \"model\" was changed between its steps"));
  });
}

// promise: trainer.h#ShardAnswer, trainer_options.h#TrainerOptions, trainer_options.h#deadline
TEST(TrainerRefusals, WhatIsRefused) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto making = [&](const Optimizer& optimizer, const TrainerOptions& options) {
      return text_of<InvalidArgument>([&] { Trainer(job, *model, optimizer, options); });
    };
    EXPECT_EQ(making(Adam{}, {.shards = 0}), "0 shards: a step has at least 1");
    EXPECT_THAT(making(Adam{}, {.clip = {.norm = -1}}), HasSubstr("clip.norm -1"));
    for (const double bad : {-0.5, 1.0, std::nan("")}) {
      EXPECT_THAT(making(Adam{}, {.ema_decay = bad}), HasSubstr("must be between 0 and 1"));
    }
    EXPECT_THAT(making(Adam{}, {.shards = 2, .speeds = {1, 2, 3}}), HasSubstr("speeds"));
    EXPECT_THAT(making(Adam{}, {.deadline = std::chrono::milliseconds(0)}), HasSubstr("positive"));
    EXPECT_THAT(text_of<InvalidArgument>([] { Optimizer(Adam{.lr = -1}); }),
                HasSubstr("learning rate"));
    EXPECT_THAT(text_of<InvalidArgument>([] { Optimizer(Sgd{.nesterov = true}); }),
                HasSubstr("Nesterov"));

    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    const auto stepping = [&](const Trainer::Compute& compute) {
      return text_of<Error>([&] { trainer.step(compute); });
    };
    const Batch batch(4, 1);
    EXPECT_THAT(stepping([](Shard&) { return ShardAnswer(); }), HasSubstr("gave no answer"));
    EXPECT_THAT(stepping([&](Shard& shard) { return shard.loss(batch.loss(model, 0, 4), -1); }),
                HasSubstr("not negative, not -1"));
    EXPECT_THAT(
        stepping([&](Shard& shard) { return shard.loss(batch.loss(model, 0, 4), std::nan("")); }),
        HasSubstr("a weight must be finite"));
    EXPECT_THAT(stepping([&](Shard& shard) { return shard.loss(model->forward(batch.x)); }),
                HasSubstr("a loss is one number, not 12 of them"));
    EXPECT_THAT(stepping([&](Shard& shard) { return shard.loss(torch::ones({})); }),
                HasSubstr("the loss has no gradient"));
    EXPECT_THAT(stepping([&](Shard& shard) {
                  batch.loss(model, 0, 4).backward();
                  return shard.nothing();
                }),
                HasSubstr("leave the backward to the Trainer"));
    EXPECT_THAT(stepping([&](Shard& shard) { return shard.gradients({}); }),
                HasSubstr("0 gradients for 4 parameters"));
    EXPECT_EQ(trainer.steps(), 0);
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return rows_of(shard, model, batch); }).applied);
    EXPECT_THAT(text_of<InvalidArgument>([&] { Trainer(job, *model, Adam{}, {.shards = 2}); }),
                HasSubstr("is wrapped by"));
  });
}

// promise: error.h#OutOfMemory, trainer.h#Trainer
TEST(TrainerRefusals, AModelThatDoesNotFitTheMachineIsOutOfMemory) {
  on_workers(1, [](const Job&) {
    const auto small = std::make_shared<StubSystem>(
        std::vector<MemoryBound>{{"the test", std::uint64_t{64} << 20, std::uint64_t{32} << 20}});
    const Job job(std::make_shared<JobState>(Identity{}, small, ThreadRendezvous().rendezvous(0),
                                             JobOptions{}));
    torch::nn::Linear model(torch::nn::LinearOptions(1024, 4096).bias(false));  // 16 MiB
    const auto make = [&](const Optimizer& rule) { Trainer(job, *model, rule, {.shards = 1}); };
    EXPECT_THAT(text_of<OutOfMemory>([&] { make(Adam{}); }), HasSubstr("the test has 32 MiB left"));
    make(Sgd{.lr = 0.1});
  });
}

TEST(TrainerRefusals, AScheduleThatThrowsChangesNothing) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    bool broken = true;
    const Schedule schedule("mine", [&](std::int64_t) {
      if (broken) throw std::runtime_error("no factor today");
      return 1.0;
    });
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2, .schedule = schedule});
    const Batch batch(4, 1);
    const auto step = [&] {
      return trainer.step([&](Shard& shard) { return rows_of(shard, model, batch); });
    };
    EXPECT_EQ(text_of<std::exception>([&] { step(); }), "no factor today");
    EXPECT_EQ(trainer.steps(), 0);
    broken = false;
    EXPECT_TRUE(step().applied);
  });
}

// promise: trainer.h#gradients
TEST(TrainerRefusals, AGatheredMetricMayBeCalledLoss) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const auto result = trainer.step([&](Shard& shard) {
      shard.metrics().gather("loss", 3);
      return shard.gradients(std::vector<torch::Tensor>(4));
    });
    EXPECT_TRUE(std::isnan(result.loss));
    EXPECT_EQ(result.metrics.gathered("loss"), std::vector<double>(2, 3));
  });
}

// promise: metrics.h#ShardMetrics
TEST(TrainerRefusals, AMetricOfTwoKindsIsNamedOnEveryWorker) {
  on_workers(3, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3});
    const auto before = trainer.state_sha256();
    const auto step = [&](bool differs) {
      return trainer.step([&](Shard& shard) {
        if (differs && shard.index() == 2) {
          shard.metrics().mean("rows", 4);
        } else {
          shard.metrics().sum("rows", 4);
        }
        return rows_of(shard, model, Batch(9, 1));
      });
    };
    EXPECT_THAT(text_of<InvalidArgument>([&] { step(true); }),
                HasSubstr("metric \"rows\" is recorded as sum by shard 0 and as mean by shard 2"));
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_TRUE(step(false).applied);
  });
}

// promise: optimizer.h#text_of, trainer.h#Trainer
TEST(TrainerRefusals, WorkersWithOtherOptionsGetTheSameDiff) {
  const auto outcome = run_process_ranks(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Adam{.lr = job.rank() == 0 ? 0.1 : 0.2}, {.shards = 2});
  });
  for (const auto& rank : outcome.ranks) {
    EXPECT_THAT(rank.text, HasSubstr("setting \"rule of 0.weight\" is Adam lr 0.2"));
  }
}

}  // namespace
}  // namespace tutti::test::trainer_refusals_cases
