// What is left of a Trainer when something fails in the middle: a step that is dropped by all, or a
// Trainer that has ended for all, and never a part of both.

#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>

#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::trainer_failures_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Sequential with_buffers() {
  return torch::nn::Sequential(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
}
StepResult step_of(Trainer& trainer, torch::nn::Sequential& model) {
  return trainer.step([&](Shard& shard) {
    return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
  });
}

// promise: trainer.h#Trainer
TEST(TrainerFailures, OneThatHasEndedSavesNothingAndRepeatsWhatEndedIt) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    auto model = with_buffers();
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .ema_decay = 0.5});
    step_of(trainer, model);
    // One worker's evaluation fails while the others are in another call.
    const auto validate = [&] {
      trainer.with_ema([&] {
        if (job.rank() == 1) throw std::runtime_error("no data here");
        trainer.evaluate(4, 2, [](const auto&, ShardMetrics&) {});
      });
    };
    if (job.rank() == 1) {
      EXPECT_EQ(text_of<std::runtime_error>(validate), "no data here");
    } else {
      EXPECT_NE(text_of<Mismatch>(validate), "");
    }
    // The parameters may be the averages now: nobody trains on, or saves them.
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { step_of(trainer, model); },
             [&] { trainer.save(folder.file("run")); },
             [&] { trainer.load(folder.file("run")); },
             [&] { trainer.edit([] {}); },
             [&] { trainer.evaluate(4, 2, [](const auto&, ShardMetrics&) {}); },
         }) {
      EXPECT_NE(text_of<Mismatch>(call), "");
    }
    EXPECT_FALSE(std::filesystem::exists(folder.file("run")));
  });
}

// promise: trainer.h#apply
TEST(TrainerFailures, AWorkerThatFailsBetweenTheHalvesDropsTheStep) {
  on_workers(3, [](const Job& job) {
    auto model = with_buffers();
    const Group group(job, "test");
    std::string before;
    const auto body = [&] {
      Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 3});
      before = trainer.state_sha256();
      trainer.accumulate([&](Shard& shard) {
        return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
      });
      if (job.rank() == 1) trainer.gradient("typo");
      const auto text = text_of<PeerFailed>([&] { trainer.apply(); });
      EXPECT_THAT(text, HasSubstr("step 1 of \"model\": rank 1 failed: "));
      EXPECT_THAT(text, HasSubstr("the step is dropped by all workers"));
      EXPECT_EQ(trainer.state_sha256(), before);
      EXPECT_EQ(trainer.steps(), 0);
    };
    if (job.rank() == 1) {
      EXPECT_THAT(text_of<InvalidArgument>(body), HasSubstr("there is no parameter \"typo\""));
    } else {
      body();
    }
    group.barrier();
  });
}

// promise: trainer.h#accumulate
TEST(TrainerFailures, WhoDoesNotGoOnAfterTheFirstHalfDropsTheStep) {
  on_workers(2, [](const Job& job) {
    auto model = with_buffers();
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 2});
    const auto before = trainer.state_sha256();
    trainer.accumulate([&](Shard& shard) {
      return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
    });
    const auto found = HasSubstr("accumulate() between accumulate() and apply()");
    if (job.rank() == 1) {
      EXPECT_THROW(trainer.gradient("typo"), InvalidArgument);  // and is caught somewhere
      EXPECT_THAT(text_of<InvalidArgument>([&] { step_of(trainer, model); }), found);
    } else {
      EXPECT_THAT(text_of<PeerFailed>([&] { trainer.apply(); }), found);
    }
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_EQ(step_of(trainer, model).step, 1);
  });
}

// promise: trainer.h#Trainer
TEST(TrainerFailures, AnEndedOneIsWaitedForByNobody) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    const Group group(job, "test");
    auto model = mlp();
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .deadline = std::chrono::milliseconds(500)});
    const auto step = [&] {
      trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
    };
    if (job.rank() == 0) {
      EXPECT_THAT(text_of<Timeout>(step),
                  HasSubstr("the end of its shards in step 1 of \"model\""));
    }
    group.barrier();
    EXPECT_THAT(text_of<Timeout>([&] { trainer.save(folder.file("run")); }),
                HasSubstr("rank 1 has not reached the end of its shards"));
  });
}

// promise: trainer.h#accumulate
TEST(TrainerFailures, ParametersStandStillUntilAllHaveCalledApply) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 2});
    const auto before = parameters_sha256(*model);
    trainer.accumulate([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (job.rank() == 1 && std::chrono::steady_clock::now() < until) {
      ASSERT_EQ(parameters_sha256(*model), before);
    }
    EXPECT_TRUE(trainer.apply().applied);
    EXPECT_NE(parameters_sha256(*model), before);
  });
}

// promise: error.h#step, trainer.h#step, trainer.h#steps
TEST(TrainerFailures, StepsAreNamedByTheTrainersNumbers) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    auto model = mlp();
    const auto failing = [&](Trainer& trainer) {
      trainer.step([&](Shard& shard) -> ShardAnswer {
        if (job.rank() == 1) throw std::runtime_error("no");
        return rows_of(shard, model, Batch(9, 1));
      });
    };
    const auto expect_number = [&](Trainer& trainer, std::int64_t number) {
      for (int again = 0; again < 2; ++again) {
        try {
          failing(trainer);
          ADD_FAILURE() << "it did not fail";
        } catch (const PeerFailed& failed) {
          EXPECT_EQ(failed.step(), number);
          EXPECT_THAT(failed.what(), HasSubstr("step " + std::to_string(number) + " of \"model\""));
        } catch (const std::runtime_error& own) {
          EXPECT_STREQ(own.what(), "no");
        }
      }
    };
    const auto step = [&](Trainer& trainer) {
      return trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
    };
    {
      Trainer trainer(job, *model, Adam{}, {.shards = 2});
      expect_number(trainer, 1);
      step(trainer);
      EXPECT_EQ(step(trainer).report.step, 2);
      trainer.save(folder.file("run"));
    }
    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    trainer.load(folder.file("run"));
    expect_number(trainer, 3);
    EXPECT_EQ(step(trainer).report.step, 3);
  });
}

TEST(TrainerFailures, AnEditThatMovesATensorIsNamedOnAllWorkers) {
  on_workers(2, [](const Job& job) {
    auto model = with_buffers();
    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { trainer.edit([&] { model->to(torch::kFloat64); }); }),
        AllOf(HasSubstr("was moved after Trainer was made"),
              job.rank() == 0 ? HasSubstr("") : HasSubstr("edit() failed on rank 0")));
    const auto text = text_of<Error>([&] { step_of(trainer, model); });
    EXPECT_THAT(text, HasSubstr("was moved after Trainer was made"));
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error, trainer.h#edit
TEST(TrainerFailures, AnEditThatThrowsAnythingIsSaidOnAllWorkers) {
  on_workers(2, [](const Job& job) {
    auto model = with_buffers();
    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    const auto edit = [&] { trainer.edit([] { throw 42; }); };
    if (job.rank() == 0) {
      EXPECT_THROW(edit(), int);
    } else {
      EXPECT_THAT(text_of<InvalidArgument>(edit),
                  HasSubstr("an exception that is no std::exception"));
    }
    EXPECT_TRUE(step_of(trainer, model).applied);
  });
}

// promise: trainer_options.h#hash_every
TEST(TrainerFailures, HashesAreAskedForOnAllWorkersOrNone) {
  const TemporaryFolder folder;
  const auto outcome = run_process_ranks(2, [&](const Job& job) {
    auto model = mlp();
    TrainerOptions options{.shards = 2};
    if (job.rank() == 0) options.log = folder.file("log");
    if (job.rank() == 0) options.hash_every = 1;
    Trainer trainer(job, *model, Adam{}, options);
  });
  for (const auto& rank : outcome.ranks) {
    EXPECT_THAT(rank.text, HasSubstr("setting \"hash_every\" is 0"));
  }
}

/// A limit on the size of files stands for a disk that is full.
// promise: trainer_options.h#log
TEST(TrainerFailures, AStepThatCannotBeLoggedIsAStepAllTheSame) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    LogCapture log;
    auto model = mlp();
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .log = folder.file("log")});
    const auto step = [&] {
      return trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
    };
    step();
    signal(SIGXFSZ, SIG_IGN);
    rlimit free{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &free), 0);
    const rlimit full{10, free.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    EXPECT_EQ(step().step, 2);
    EXPECT_EQ(step().step, 3);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &free), 0);
    EXPECT_EQ(step().step, 4);
    EXPECT_EQ(log.count("step 2 is missing in the step log"), job.rank() == 0 ? 1 : 0);
    EXPECT_EQ(log.count("is missing in the step log"), job.rank() == 0 ? 1 : 0);
  });
  const auto text = read_file(folder.file("log"));
  EXPECT_THAT(text, AllOf(HasSubstr("\"step\":1,"), HasSubstr("\"step\":4,")));
}

}  // namespace
}  // namespace tutti::test::trainer_failures_cases
