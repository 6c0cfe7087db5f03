// Tutti's Trainer: a step is one call, and the update is a part of it.

#include "tutti/trainer.h"

#include "common/control.h"
#include "step/worker.h"

namespace {

constexpr const char* kUsage =
    "usage: bench_step_trainer SOCKET MODEL SHARDS [--codec CODEC] [--averaging POLICY] "
    "[--logical-workers L] [--fusion ELEMENTS]";

tutti::TrainerOptions options_of(int count, char** arguments) {
  if (count < 4 || count % 2 != 0) bench::fail(kUsage);
  tutti::TrainerOptions options{.shards = std::stoll(arguments[3])};
  for (int i = 4; i < count; i += 2) {
    const std::string name = arguments[i];
    const std::string value = arguments[i + 1];
    if (name == "--codec") {
      options.compression.codec = tutti::codec_of(value);
    } else if (name == "--averaging") {
      options.averaging = tutti::averaging_policy_of(value);
    } else if (name == "--logical-workers") {
      options.logical_workers = std::stoll(value);
    } else if (name == "--fusion") {
      options.compression.fusion = std::stoll(value);
    } else {
      bench::fail(kUsage);
    }
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) try {
  const auto options = options_of(count, arguments);
  const auto job = tutti::Job::join();
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
} catch (const std::exception& error) {
  bench::fail(error.what());
}
