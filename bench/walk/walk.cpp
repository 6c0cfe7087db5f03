// What one step of a Trainer runs through: under gcov, rank 0 writes the counts of its third step
// alone. script/walk counts the sources in them.

#include <cstdlib>

#include <torch/torch.h>

#include "tutti/tutti.h"

extern "C" void __gcov_reset();
extern "C" void __gcov_dump();

int main() {
  const auto job = tutti::Job::join();
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::ReLU(),
                              torch::nn::Linear(16, 4));
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 1e-3},
                         {.shards = 4, .seed = 1, .audit_every = 0});
  const auto step = [&] {
    trainer.step([&](tutti::Shard& shard) {
      return shard.loss(model->forward(torch::randn({2, 8})).square().mean());
    });
  };
  step();
  step();
  __gcov_reset();
  step();
  if (job.rank() == 0) {
    unsetenv("GCOV_PREFIX");
    __gcov_dump();
  }
  // What comes after the step is counted elsewhere.
  setenv("GCOV_PREFIX", "/dev/null", 1);
}
