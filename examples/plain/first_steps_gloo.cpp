// 01_first_steps.cpp as it is written by hand over libtorch's own process group: after each
// backward the gradients are added up and divided. docs/data_parallel.md has the difference.
//
//   torchrun --nproc-per-node 2 --no-python build/bin/plain_first_steps_gloo

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return value;
}

}  // namespace

int main() try {
  const int rank = std::stoi(variable("RANK"));
  const int size = std::stoi(variable("WORLD_SIZE"));
  const auto host = variable("MASTER_ADDR");
  c10d::TCPStoreOptions where;
  where.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  // torchrun serves a store there itself, and says so.
  where.isServer = rank == 0 && std::getenv("TORCHELASTIC_USE_AGENT_STORE") == nullptr;
  where.numWorkers = static_cast<std::size_t>(size);
  const auto tcp = c10::make_intrusive<c10d::TCPStore>(host, where);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("first_steps", tcp);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  c10d::ProcessGroupGloo group(store, rank, size, options);

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  for (auto& parameter : model->parameters()) {
    std::vector<torch::Tensor> weights{parameter.detach()};
    group.broadcast(weights)->wait();
  }

  for (int step = 1; step <= 200; ++step) {
    // The same batch everywhere; each worker takes its own rows.
    const auto x = torch::randn({64, 8});
    const auto y = torch::sin(x.slice(1, 0, 1)) + x.slice(1, 1, 2);
    const auto begin = x.size(0) / size * rank;
    const auto end = x.size(0) / size * (rank + 1);

    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(model->forward(x.slice(0, begin, end)), y.slice(0, begin, end));
    loss.backward();
    for (auto& parameter : model->parameters()) {
      std::vector<torch::Tensor> gradient{parameter.grad()};
      group.allreduce(gradient)->wait();
      gradient[0].div_(size);
    }
    optimizer.step();

    if (step % 50 != 0) continue;
    std::vector<torch::Tensor> mean{loss.detach().to(torch::kFloat64) / size};
    group.allreduce(mean)->wait();
    if (rank == 0) std::printf("step %d loss %.4f\n", step, mean[0].item<double>());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
