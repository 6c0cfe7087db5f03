#include <tutti/tutti.h>

#include <cmath>
#include <cstdio>

// One step on different data per worker: the gradient of mean(w·x) is the mean of both workers' x.
int main() {
  const auto job = tutti::Job::join();
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  tutti::DataParallel parallel(job, *model);
  const auto x = torch::full({1, 1}, job.rank() == 0 ? 1.0 : 4.0);
  model->forward(x).sum().backward();
  const float gradient = model->weight.grad().item<float>();
  std::printf("rank %d of %d: gradient %g\n", job.rank(), job.size(), gradient);
  return job.size() == 2 && std::abs(gradient - 2.5F) < 1e-6F ? 0 : 1;
}
