// Tutti's Trainer: a step is one call, and the update is a part of it.

#include "tutti/trainer.h"

#include "common/control.h"
#include "step/worker.h"

int main(int count, char** arguments) {
  if (count != 4 && count != 6 && count != 7) {
    bench::fail(
        "usage: tutti run -n N bench_step_trainer SOCKET MODEL SHARDS [CODEC|STRATEGY "
        "LOGICAL_WORKERS [FUSION]]");
  }
  const auto job = tutti::Job::join();
  tutti::TrainerOptions options{.shards = std::stoll(arguments[3])};
  if (count > 6) options.compression.fusion = std::stoll(arguments[6]);
  if (count > 4) {
    const std::string what = arguments[4];
    const bool is_policy =
        what == "partial" || what.starts_with("local-sgd") || what.starts_with("bmuf");
    if (is_policy) {
      options.averaging = tutti::averaging_policy_of(what);
    } else {
      options.compression.codec = tutti::codec_of(what);
    }
    options.logical_workers = std::stoll(arguments[5]);
  }
  bench::train(arguments[1], arguments[2], job.rank(), [&](const bench::Task& task) {
    const auto trainer = std::make_shared<tutti::Trainer>(
        job, *task.model, tutti::Adam{.lr = bench::kLearningRate}, options);
    const auto compute = [loss = task.loss](tutti::Shard& shard) {
      return shard.loss(loss(shard.index()));
    };
    const auto step = [=] {
      const auto result = trainer->step(compute);
      if (!result.applied) bench::fail("a step was dropped: " + result.dropped_because);
    };
    const auto traffic = [=] {
      std::int64_t sent = 0;
      std::int64_t dense = 0;
      const auto report = trainer->traffic();
      for (const auto& bucket : report.all_steps) {
        sent += static_cast<std::int64_t>(bucket.bytes);
        dense += static_cast<std::int64_t>(bucket.bytes_dense);
      }
      return std::vector<std::int64_t>{sent, dense, report.steps};
    };
    return bench::Training{step, [=] { trainer->accumulate(compute); }, traffic};
  });
}
