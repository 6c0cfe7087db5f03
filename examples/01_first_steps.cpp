// A training loop on several workers. The lines that mention tutti are all it takes.
//
//   build/bin/tutti run -n 2 build/bin/first_steps
//
// Each worker takes its own rows of every batch; all end with the same parameters, byte for byte.

#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "tutti/tutti.h"

int main() try {
  auto job = tutti::Job::join();  // alone: a group of one; under `tutti run -n 2`: two

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  // Checks that all workers have the same model, and sends them rank 0's weights.
  tutti::DataParallel parallel(job, *model);

  for (int step = 1; step <= 200; ++step) {
    // The same batch everywhere; each worker takes its own rows.
    const auto x = torch::randn({64, 8});
    const auto y = torch::sin(x.slice(1, 0, 1)) + x.slice(1, 1, 2);
    const auto [begin, end] = tutti::share_of(x.size(0), job);

    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(model->forward(x.slice(0, begin, end)), y.slice(0, begin, end));
    parallel.next_weight(static_cast<double>(end - begin));
    loss.backward();  // gradients arrive reduced: Σ w·g / Σ w over all workers
    optimizer.step();

    if (step % 50 != 0) continue;
    const double mean = parallel.mean(loss.item<double>(), static_cast<double>(end - begin));
    if (job.rank() == 0) std::printf("step %d loss %.4f\n", step, mean);
  }
  std::printf("worker %d of %d ends with parameters sha256 %s\n", job.rank(), job.size(),
              tutti::parameters_sha256(*model).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
