// A signal that ends a Trainer's run in time: all workers save and end, and the run resumes as if
// it had never stopped.

#include <unistd.h>

#include <csignal>

#include "support/process_ranks.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::save_on_signal_cases {
namespace {

using ::testing::HasSubstr;

/// Steps up to the sixth; the one whose number is `asked_in` is followed by a signal to `asked`.
std::string trained(const Job& job, const std::string& folder, int signal = 0, int asked = 0) {
  torch::manual_seed(1);
  auto model = mlp();
  Trainer trainer(job, *model, Adam{.lr = 0.01}, {.shards = 5});
  double total = 0;  // of the program's own, after each step
  trainer.keep("total", total);
  trainer.save_on_signal(folder);
  trainer.load(folder);
  while (trainer.steps() < 6) {
    const auto result = trainer.step([&](Shard& shard) {
      const Batch batch(4, shard.seed());
      return shard.loss(torch::mse_loss(model->forward(batch.x), batch.y));
    });
    if (signal != 0 && result.step == 3 && job.rank() == asked) std::raise(signal);
    total += result.loss;
  }
  return fmt::format("{} {}", trainer.state_sha256(), total);
}

// promise: trainer.h#save_on_signal
TEST(SaveOnSignal, EndsAllWorkersAndTheRunResumesOnAnotherNumberToTheSameBytes) {
  const auto straight = text_of_rank_0(
      1, [&](const Job& job) { return trained(job, TemporaryFolder().file("none")); });
  for (const int workers : {1, 2, 3}) {
    for (const int signal : {SIGTERM, SIGUSR1}) {
      const TemporaryFolder folder;
      const auto run = folder.file("run");
      const auto outcome = run_process_ranks(workers, [&](const Job& job) {
        at::set_num_threads(1);
        trained(job, run, signal, workers - 1);
        ADD_FAILURE() << "it went on";
      });
      for (const auto& rank : outcome.ranks) {
        EXPECT_EQ(rank.status, kResumeStatus) << outcome.describe();
      }
      EXPECT_TRUE(std::filesystem::exists(run + "/step-00000003"));
      EXPECT_EQ(text_of_rank_0(4 - workers, [&](const Job& job) { return trained(job, run); }),
                straight);
    }
  }
}

TEST(SaveOnSignal, WhereTheSaveFailsTheStepSaysSoAndTheRunGoesOn) {
  const TemporaryFolder folder;
  const auto outcome = run_process_ranks(2, [&](const Job& job) {
    at::set_num_threads(1);
    auto model = mlp();
    Trainer trainer(job, *model, Adam{.lr = 0.01}, {.shards = 2});
    EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.save_on_signal(""); }),
                HasSubstr("name is empty"));
    trainer.save_on_signal("/proc/none/run");
    const auto step = [&] {
      trainer.step([&](Shard& shard) {
        const Batch batch(4, shard.seed());
        return shard.loss(torch::mse_loss(model->forward(batch.x), batch.y));
      });
    };
    step();
    std::raise(SIGUSR1);
    EXPECT_THAT(text_of<IoError>(step), HasSubstr("/proc/none"));
    EXPECT_EQ(trainer.steps(), 1);
    trainer.save_on_signal(folder.file("run"));
    step();
    ADD_FAILURE() << "it went on";
  });
  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(rank.status, kResumeStatus) << outcome.describe();
  }
}

// promise: trainer.h#save_on_signal
TEST(SaveOnSignal, IsForOneTrainerAtATime) {
  const TemporaryFolder folder;
  const auto outcome = run_process_ranks(2, [&](const Job& job) {
    at::set_num_threads(1);
    auto one = mlp(), other = mlp();
    const auto train = [&](Trainer& trainer, torch::nn::Sequential& model) {
      trainer.step([&](Shard& shard) {
        const Batch batch(4, shard.seed());
        return shard.loss(torch::mse_loss(model->forward(batch.x), batch.y));
      });
    };
    Trainer first(job, *one, Adam{.lr = 0.01}, {.shards = 2});
    {
      Trainer second(job, *other, Adam{.lr = 0.01}, {.shards = 2});
      first.save_on_signal(folder.file("first"));
      EXPECT_THAT(text_of<InvalidArgument>([&] { second.save_on_signal(folder.file("second")); }),
                  HasSubstr("another Trainer saves on a signal already"));
      train(second, other);
    }
    first.save_on_signal(folder.file("anew"));  // its own, in another folder
    std::raise(SIGTERM);
    train(first, one);
  });
  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(rank.status, kResumeStatus) << outcome.describe();
  }
  EXPECT_TRUE(std::filesystem::exists(folder.file("anew")));
}

// promise: job.h#should_end
TEST(ShouldEnd, IsTheSameAnswerOnAllWorkersInTheSameStep) {
  for (const int workers : {1, 2, 3}) {
    const auto outcome = run_process_ranks(workers, [&](const Job& job) {
      at::set_num_threads(1);
      auto model = mlp();
      DataParallel parallel(job, *model);
      for (int step = 1;; ++step) {
        const Batch batch(
            4, static_cast<std::uint64_t>(step) * 3 + static_cast<std::uint64_t>(job.rank()));
        model->zero_grad();
        torch::mse_loss(model->forward(batch.x), batch.y).backward();
        // Some workers raise it before others ask.
        if (step == 3 && job.rank() == workers - 1) std::raise(SIGTERM);
        if (job.should_end()) ::_exit(step == 3 ? kResumeStatus : 1);
        ASSERT_LT(step, 3);
      }
    });
    for (const auto& rank : outcome.ranks) {
      EXPECT_EQ(rank.status, kResumeStatus) << outcome.describe();
    }
  }
}

}  // namespace
}  // namespace tutti::test::save_on_signal_cases
