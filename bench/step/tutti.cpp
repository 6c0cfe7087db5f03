// Tutti's DataParallel: gradients are reduced when backward returns.

#include "common/control.h"
#include "step/worker.h"
#include "tutti/data_parallel.h"

int main(int count, char** arguments) {
  if (count != 4 && count != 5) {
    bench::fail("usage: tutti run -n N bench_step_tutti SOCKET MODEL OPTIMIZER [FUSION]");
  }
  const auto job = tutti::Job::join();
  tutti::DataParallelOptions options;
  if (count == 5) {
    options.fusion = std::stoll(arguments[4]);
    options.first_fusion = std::min(options.first_fusion, options.fusion);
  }
  std::weak_ptr<tutti::DataParallel> latest;
  const auto wrap = [&](torch::nn::Module& model) {
    const auto parallel = std::make_shared<tutti::DataParallel>(job, model, options);
    latest = parallel;
    return [parallel] {};
  };
  const auto loop = bench::torch_loop(arguments[3], job.rank(), wrap);
  bench::train(arguments[1], arguments[2], job.rank(), [&](const bench::Task& task) {
    auto training = loop(task);
    training.traffic = [&] { return std::vector<std::int64_t>{latest.lock()->report().buckets}; };
    return training;
  });
}
