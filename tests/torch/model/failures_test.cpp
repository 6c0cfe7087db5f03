// Workers that die, stop, are busy or give up while they train, and machines that are too small.

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::failures_cases {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

void step_of(torch::nn::Sequential& model, const Job& job, std::uint64_t step) {
  model->zero_grad();
  const Batch batch(2 * job.size(), step);
  batch.loss(model, 2 * job.rank(), 2 * job.rank() + 2).backward();
}

// By notice of the operating system: the deadline of the job is 50 s, and the test ends long
// before.
// promise: data_parallel.h#DataParallel, errors#a-dataparallel-resumes-with-the-next-step
TEST(TrainingFailure, ADeadWorkerIsNamedAndTheOthersTrainOnWithoutIt) {
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int attempt = 0; attempt < 3 && fastest > seconds(1); ++attempt) {
    const auto started = std::chrono::steady_clock::now();
    const auto outcome = outcome_on_workers(3, [](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      auto parallel = std::make_unique<DataParallel>(job, *model);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      std::uint64_t step = 1;
      for (; step <= 3; ++step) {
        step_of(model, job, step);
        optimizer.step();
      }
      if (job.rank() == 1) ::raise(SIGKILL);
      // In the step and in any later one the error is the same.
      for (int again = 0; again < 2; ++again) {
        try {
          step_of(model, job, step);
          ADD_FAILURE() << "a dead worker took part";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.rank(), 1);
          EXPECT_THAT(error.what(), HasSubstr("rank 1"));
        }
        for (const auto& p : model->parameters()) EXPECT_FALSE(p.grad().defined());
      }
      parallel.reset();
      const Group rest(job, job.alive(), "rest");
      ASSERT_EQ(rest.size(), 2);
      DataParallel fresh(rest, *model);
      for (; step <= 6; ++step) {
        step_of(model, job, step);
        optimizer.step();
        EXPECT_EQ(fresh.report().weight, 2);
      }
      expect_equal_everywhere(rest, *model);
    });
    fastest = std::min(fastest, std::chrono::steady_clock::now() - started);
    EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
    EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
    EXPECT_TRUE(outcome.ranks[2].good()) << outcome.describe();
  }
  EXPECT_LT(fastest, seconds(20)) << "the death was noticed by a deadline";
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(TrainingFailure, ADeadWorkerEndsATrainerAndAFreshOneGoesOnFromTheCheckpoint) {
  const TemporaryFolder folder;
  const auto outcome = run_process_ranks(3, [&](const Job& job) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    auto model = mlp();
    const TrainerOptions options{.shards = 4, .seed = 3};
    auto trainer = std::make_unique<Trainer>(job, *model, Adam{.lr = 0.1}, options);
    const auto compute = [&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); };
    for (int step = 1; step <= 2; ++step) trainer->step(compute);
    trainer->save(folder.file("run"));
    const auto saved = trainer->state_sha256();
    for (int again = 0; again < 2; ++again) {
      try {
        trainer->step([&](Shard& shard) {
          if (job.rank() == 1) ::raise(SIGKILL);
          return compute(shard);
        });
        ADD_FAILURE() << "a dead worker took part";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.rank(), 1);
      }
    }
    trainer.reset();
    Trainer fresh(Group(job, job.alive(), "rest"), *model, Adam{.lr = 0.1}, options);
    EXPECT_EQ(fresh.load(folder.file("run")), 2);
    EXPECT_EQ(fresh.state_sha256(), saved);
    EXPECT_EQ(fresh.step(compute).shards, 4);
  });
  EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
  EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
  EXPECT_TRUE(outcome.ranks[2].good()) << outcome.describe();
}

// promise: errors#what-is-not-survived, trainer_options.h#deadline
TEST(TrainingFailure, AWorkerThatStandsStillInItsShardIsNamedByTheTrainersDeadline) {
  const auto outcome = run_process_ranks(2, [](const Job& job) {
    at::set_num_threads(1);
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2, .deadline = milliseconds(1500)});
    const auto failure = text_of<Timeout>([&] {
      trainer.step([&](Shard& shard) {
        if (job.rank() == 1) std::this_thread::sleep_for(seconds(4));
        return rows_of(shard, model, Batch(9, 1));
      });
    });
    EXPECT_THAT(failure, HasSubstr("rank 1"));
    EXPECT_THAT(failure,
                HasSubstr("has to call step(), and what else all make together, as often"));
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: data_parallel.h#deadline
TEST(TrainingFailure, AWorkerThatStandsStillIsNamedByTheDeadlineOfTheSync) {
  const auto outcome = outcome_on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model, {.name = "critic", .deadline = seconds(2)});
    const std::int64_t mine = ::getpid();
    std::vector<std::int64_t> all(2);
    parallel.group().all_gather({&mine, 1, DType::int64}, {all.data(), 2, DType::int64});
    step_of(model, job, 1);
    if (job.rank() == 1) {
      ::raise(SIGSTOP);  // until the other ends it
      return;
    }
    const auto text = text_of<Timeout>([&] { step_of(model, job, 2); });
    EXPECT_THAT(text, HasSubstr("\"critic\""));
    EXPECT_THAT(text, HasSubstr("rank 1"));
    EXPECT_THAT(text, HasSubstr("step 2"));
    ::kill(static_cast<pid_t>(all[1]), SIGKILL);
  });
  EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
  EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
}

// promise: errors#deadlines
TEST(TrainingFailure, TheTimeOfABusyWorkerDoesNotCount) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model, {.deadline = seconds(1)});
    step_of(model, job, 1);
    if (job.rank() == 1) {
      const auto busy = job.busy("evaluate", seconds(30));
      std::this_thread::sleep_for(milliseconds(2500));
    }
    step_of(model, job, 2);
    EXPECT_EQ(parallel.report().step, 2);
    EXPECT_EQ(parallel.report().last_worker, 1);
  });
}

// promise: data_parallel.h#fail
TEST(TrainingFailure, AWorkerThatGivesAStepUpIsQuotedByAll) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    DataParallel parallel(job, *model);
    step_of(model, job, 1);
    if (job.rank() == 2) {
      parallel.fail("shard 7 cannot be read");
    } else {
      try {
        step_of(model, job, 2);
        ADD_FAILURE() << "the failure went unnoticed";
      } catch (const PeerFailed& error) {
        EXPECT_EQ(error.rank(), 2);
        EXPECT_EQ(error.step(), 2);
        EXPECT_THAT(error.what(), HasSubstr("shard 7 cannot be read"));
      }
    }
    step_of(model, job, 3);
    expect_equal_everywhere(parallel.group(), *model);
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(TrainingFailure, GradientsThatDoNotFitTheMachineAreRefusedWithTheFigures) {
  constexpr std::size_t kBytes = std::size_t{1} << 42;  // 4 TiB, of which no page is ever touched
  void* const place = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(place, MAP_FAILED);
  on_workers(2, [&](const Job& job) {
    const auto huge = torch::from_blob(place, {static_cast<std::int64_t>(kBytes / sizeof(float))});
    const auto text = text_of<OutOfMemory>([&] {
      DataParallel parallel(Group(job), {{"table", huge.requires_grad_()}});
    });
    EXPECT_THAT(text, HasSubstr("needs 8 TiB (4 TiB for each of 2 workers)"));
    // Nothing was taken: the next model trains.
    auto model = mlp();
    DataParallel parallel(job, *model);
    step_of(model, job, 1);
    EXPECT_EQ(parallel.report().step, 1);
  });
  ::munmap(place, kBytes);
}

// promise: data_parallel.h#DataParallel
TEST(TrainingFailure, AMismatchLeavesTheParametersOfTheLastStep) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    torch::manual_seed(1);
    DataParallel parallel(job, *model);
    auto optimizer = momentum_and_decay(model->parameters());
    step_of(model, job, 1);
    optimizer.step();
    const auto last = parameters_sha256(*model);
    const auto differing = [&] {
      if (job.rank() == 0) return step_of(model, job, 2);
      model->zero_grad();
      auto scope = parallel.accumulate({.micro_batches = 1});
      scope.micro_batch(1, [&] { return Batch(4, 2).loss(model, 0, 4); });
      scope.finish();
    };
    const auto text = text_of<Mismatch>(differing);
    EXPECT_NE(text, "");
    EXPECT_EQ(parameters_sha256(*model), last);
    // No gradient is left that an update would take, and each later call says the same.
    for (const auto& p : model->parameters()) EXPECT_FALSE(p.grad().defined());
    EXPECT_EQ(text_of<Mismatch>([&] { step_of(model, job, 3); }), text);
    optimizer.step();
    EXPECT_EQ(parameters_sha256(*model), last);
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(TrainingFailure, AFreshWrapperAfterAnErrorThatEndedTheOldOne) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    torch::manual_seed(1);
    {
      DataParallel parallel(job, *model);
      step_of(model, job, 1);
      // One worker accumulates, the other does not: a mismatch for both.
      const auto text = text_of<Mismatch>([&] {
        if (job.rank() == 0) return step_of(model, job, 2);
        model->zero_grad();
        auto scope = parallel.accumulate({.micro_batches = 1});
        scope.micro_batch(1, [&] { return Batch(4, 2).loss(model, 0, 4); });
        scope.finish();
      });
      EXPECT_THAT(text, HasSubstr("rank 1"));
    }
    DataParallel fresh(job, *model);
    for (std::uint64_t step = 1; step <= 3; ++step) step_of(model, job, step);
    EXPECT_EQ(fresh.report().step, 3);
  });
}

}  // namespace
}  // namespace tutti::test::failures_cases
