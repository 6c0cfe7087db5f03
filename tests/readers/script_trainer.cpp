// script_trainer MODEL TRAINED: trains a script of Python's for ten steps, writes it, and says what
// it computes then.

#include <torch/script.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tutti/tutti.h"

namespace {

void train(const std::string& file, const std::string& trained) {
  const auto job = tutti::Job::join();
  const auto x = torch::linspace(-1, 1, 24 * 6).reshape({24, 6});
  const auto y = x.square().sum(1, true);

  auto script = torch::jit::load(file);
  tutti::ScriptModule model(script);  // has the script's tensors, under their names
  tutti::Trainer trainer(job, *model, tutti::Sgd{.lr = 0.1, .momentum = 0.9}, {.shards = 4});
  while (trainer.steps() < 10) {
    trainer.step([&](tutti::Shard& shard) {
      const auto rows = torch::indexing::Slice(6 * shard.index(), 6 * shard.index() + 6);
      const auto guess = model->forward({x.index({rows})}).toTensor();
      return shard.loss(torch::mse_loss(guess, y.index({rows})), 6);
    });
  }
  if (job.rank() == 0) script.save(trained);  // for torch.jit.load() in Python

  const torch::NoGradGuard no_grad;
  if (job.rank() != 0) return;
  for (std::int64_t row = 0; row < 24; ++row) {
    std::printf("%.9g\n", model->forward({x.slice(0, row, row + 1)}).toTensor().item<double>());
  }
}

}  // namespace

int main(int /*count*/, char** arguments) try {
  train(arguments[1], arguments[2]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "script_trainer: %s\n", error.what());
  return 1;
}
