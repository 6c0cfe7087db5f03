// Tutti's DataParallel: gradients are reduced when backward returns.

#include "common/control.h"
#include "step/worker.h"
#include "tutti/data_parallel.h"

int main(int count, char** arguments) {
  if (count != 4) bench::fail("usage: tutti run -n N bench_step_tutti SOCKET MODEL OPTIMIZER");
  const auto job = tutti::Job::join();
  const auto wrap = [&](torch::nn::Module& model) {
    return [parallel = std::make_shared<tutti::DataParallel>(job, model)] {};
  };
  bench::train(arguments[1], arguments[2], job.rank(), bench::torch_loop(arguments[3], wrap));
}
