#include <tutti/tutti.h>

#include <cstdio>

int main() {
  auto job = tutti::Job::join();  // tutti
  torch::manual_seed(1);
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  tutti::DataParallel parallel(job, *model);  // tutti: rank 0's weights are everybody's
  torch::manual_seed(1 + job.rank());         // each worker draws rows of its own
  for (int step = 1; step <= 100; ++step) {
    const auto x = torch::randn({32, 8});
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), x.sum(1, true)).backward();  // gradients: the mean of all
    optimizer.step();
  }
  std::printf("weights %s\n", tutti::parameters_sha256(*model).c_str());
}
