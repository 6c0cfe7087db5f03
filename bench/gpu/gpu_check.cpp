// What Tutti does on a GPU, asked there: run has the order in which.
//
//   tutti run -n 2 gpu_check exact --model lstm --device cuda
//   gpu_check faults --device cuda
//   tutti run -n 2 gpu_check trainer --model lstm --device cuda
//   tutti run -n 2 gpu_check time --model mlp25m --times 64 --device cuda

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "gpu/parts.h"

namespace bench::gpu {

void tell(const char* part, const nlohmann::ordered_json& facts) {
  nlohmann::ordered_json line{{"part", part}};
  line.update(facts);
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

namespace {

void add_models(CLI::App& app, Options& options) {
  app.add_option("--model", options.model, "digits, lstm, mlp, mlp25m, bag …");
  app.add_option("--times", options.times, "so many times the rows of its smallest batch")
      ->check(CLI::PositiveNumber);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("What Tutti does on a GPU: exactness, missing waits, times.");
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  auto* const exactness = app.add_subcommand("exact", "digests of a training");
  add_models(*exactness, options);
  exactness->add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  exactness->add_option("--micro-batches", options.micro_batches, "per step, over all workers")
      ->check(CLI::PositiveNumber);
  exactness->add_option("--seed", options.seed, "of dropout");
  auto* const controls = app.add_subcommand("faults", "waits that are left out");
  controls->add_option("--runs", options.runs, "of each")->check(CLI::PositiveNumber);
  controls->add_option("--width", options.width, "of the model's layers")
      ->check(CLI::PositiveNumber);
  auto* const clock = app.add_subcommand("time", "steps beside those of plain torch");
  add_models(*clock, options);
  clock->add_option("--rounds", options.rounds, "the first two do not count")
      ->check(CLI::Range(3, 10000));
  clock->add_flag("--fast", options.fast, "gradients are added up by NCCL");
  auto* const trained = app.add_subcommand("trainer", "digests of a Trainer");
  add_models(*trained, options);
  trained->add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  trained->add_option("--shards", options.micro_batches)->check(CLI::PositiveNumber);
  trained->add_option("--folder", options.folder, "of a checkpoint at half of the steps");
  trained->add_flag("--resume", options.resumes, "does the other half");
  auto* const trained_clock = app.add_subcommand("trainer-time", "a Trainer's steps");
  add_models(*trained_clock, options);
  trained_clock->add_option("--shards", options.micro_batches)->check(CLI::PositiveNumber);
  trained_clock->add_option("--threads", options.threads, "of the host")
      ->check(CLI::PositiveNumber);
  trained_clock->add_option("--rounds", options.rounds, "the first two do not count")
      ->check(CLI::Range(3, 10000));
  for (auto* const part : {exactness, controls, clock, trained, trained_clock}) {
    part->add_option("--device", options.device, "cpu, or a type of libtorch's devices");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (*exactness) exact(options);
  if (*controls) faults(options);
  if (*clock) times(options);
  if (*trained) trainer(options);
  if (*trained_clock) trainer_times(options);
  return 0;
}

}  // namespace
}  // namespace bench::gpu

int main(int argc, char** argv) try {
  return bench::gpu::run(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_check: %s\n", error.what());
  return 1;
}
