// Tutti's Trainer: a step is one call, and the update is a part of it.

#include "tutti/trainer.h"

#include "common/control.h"
#include "step/worker.h"

int main(int count, char** arguments) {
  if (count != 4) bench::fail("usage: tutti run -n N bench_step_trainer SOCKET MODEL SHARDS");
  const auto job = tutti::Job::join();
  const tutti::TrainerOptions options{.shards = std::stoll(arguments[3])};
  bench::train(arguments[1], arguments[2], job.rank(), [&](const bench::Task& task) {
    const auto trainer = std::make_shared<tutti::Trainer>(
        job, *task.model, tutti::Adam{.lr = bench::kLearningRate}, options);
    const auto compute = [loss = task.loss](tutti::Shard& shard) { return shard.loss(loss()); };
    const auto step = [=] {
      const auto result = trainer->step(compute);
      if (!result.applied) bench::fail("a step was dropped: " + result.dropped_because);
    };
    return bench::Training{step, [=] { trainer->accumulate(compute); }};
  });
}
