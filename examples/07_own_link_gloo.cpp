// A link between hosts that the program makes itself: of libtorch's Gloo, over a store and with
// options of its own.
//
//   own_link_gloo STORE PORT OWN      STORE: the host of rank 0, PORT: free there; OWN: this host
//
// On one host no link is made.

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tutti/link.h"
#include "tutti/tutti.h"

int main(int count, char** arguments) try {
  if (count != 4) return 2;
  auto job = tutti::Job::join();

  // Made below, after what may be refused: a worker of a store waits for that of rank 0.
  c10::intrusive_ptr<c10d::TCPStore> store;
  const std::string own = arguments[3];
  tutti::use_link("my gloo", [&store, own](const tutti::LinkPlace& place) {
    std::vector<c10::intrusive_ptr<c10d::Backend>> lanes;
    for (int lane = 0; lane < place.lanes; ++lane) {
      auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
      options->threads = 1;
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(own));
      auto keys = c10::make_intrusive<c10d::PrefixStore>(
          place.name + " lane " + std::to_string(lane), store);
      lanes.push_back(
          c10::make_intrusive<c10d::ProcessGroupGloo>(keys, place.host, place.hosts, options));
    }
    return lanes;
  });
  c10d::TCPStoreOptions where;
  where.port = static_cast<std::uint16_t>(std::atoi(arguments[2]));
  where.isServer = job.rank() == 0;
  where.timeout = std::chrono::minutes(1);
  store = c10::make_intrusive<c10d::TCPStore>(arguments[1], where);

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 1e-2}, {.shards = 5, .seed = 1});
  double loss = 0;
  for (int step = 0; step < 50; ++step) {
    loss = trainer
               .step([&](tutti::Shard& shard) {
                 torch::manual_seed(static_cast<std::uint64_t>(shard.seed()));
                 const auto x = torch::randn({16, 8});
                 const auto y = torch::sin(x.slice(1, 0, 1)) + x.slice(1, 1, 2);
                 return shard.loss(torch::mse_loss(model->forward(x), y));
               })
               .loss;
  }
  if (job.rank() == 0) std::printf("loss %.6f\n", loss);
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(*model).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
