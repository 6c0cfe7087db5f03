// A grid of workers: the last layer's classes are split over a group `model`, the samples over all.
//
//   build/bin/tutti run -n 4 build/bin/grid   # 2 × 2; with an odd number of workers n × 1

#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "tutti/tutti.h"

int main() try {
  constexpr std::int64_t kBatch = 64;  // of all workers
  constexpr std::int64_t kClasses = 10;
  const auto job = tutti::Job::join();
  const tutti::Group world(job);
  const int width = job.size() % 2 == 0 ? 2 : 1;
  // Neighbours have one layer together, each of them other classes; `data` has the same classes.
  const tutti::Group model = world.split(job.rank() / width, "model");
  const tutti::Group data = world.split(job.rank() % width, "data");

  torch::manual_seed(1);
  torch::nn::Sequential trunk(torch::nn::Linear(8, 32), torch::nn::Tanh());
  tutti::ParallelLinear head(model, {.features = 32, .classes = kClasses, .seed = 1});
  // Losses of all workers add up to that of the batch, and so do gradients: nothing is divided. The
  // trunk's are those of a worker's own samples, wherever it stands: over all. The head's are those
  // of its neighbours' samples already: over `data`.
  tutti::DataParallel trunks(world, *trunk, {.name = "trunk", .divide = tutti::Divide::not_at_all});
  tutti::DataParallel heads(data, *head, {.name = "head", .divide = tutti::Divide::not_at_all});
  torch::optim::SGD of_trunk(trunk->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  torch::optim::SGD of_head(head->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));

  double loss_of_50 = 0;
  for (int step = 1; step <= 200; ++step) {
    // The same batch everywhere, of which each worker takes rows of its own.
    const auto x = torch::randn({kBatch, 8});
    const auto y = ((x.slice(1, 0, 1) + x.slice(1, 1, 2) + 3) * (kClasses / 6.0))
                       .squeeze(1)
                       .to(torch::kInt64)
                       .clamp(0, kClasses - 1);
    const auto [begin, end] = tutti::share_of(kBatch, job);

    const auto logits = head->logits(trunk->forward(x.slice(0, begin, end)));
    const auto loss =
        torch::cross_entropy_loss(logits, y.slice(0, begin, end), {}, at::Reduction::Sum) / kBatch;
    loss.backward();  // gradients of both arrive reduced
    of_trunk.step();
    of_head.step();
    of_trunk.zero_grad();
    of_head.zero_grad();

    loss_of_50 += tutti::partial_sum(world, loss.detach()).reduce().item<double>() / 50;
    if (step % 50 != 0) continue;
    if (job.rank() == 0) std::printf("steps to %d: mean loss %.5f\n", step, loss_of_50);
    loss_of_50 = 0;
  }
  const auto whole = tutti::gather_whole(model, head->split_tensors().at(0), 0);
  if (job.rank() == 0) std::printf("norm of the whole head %.4f\n", whole.norm().item<double>());
  std::printf("worker %d ends with a trunk of sha256 %s\n", job.rank(),
              tutti::parameters_sha256(*trunk).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
