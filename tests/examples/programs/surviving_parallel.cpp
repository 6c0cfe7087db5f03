// A DataParallel whose workers resume without one that is lost. In step 6 rank 1 is killed, exits
// with status 3, throws or, with "leaves", is left out by all: what the others then compute has to
// be the same.

#include <torch/torch.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "tutti/tutti.h"

int main(int, char** argv) try {
  const std::string how = argv[1];  // "killed", "exits", "throws" or "leaves"
  const auto job = tutti::Job::join();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(5, 9), torch::nn::Tanh(), torch::nn::Linear(9, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::Tensor loss;
  bool all_work = true;
  const auto workers = [&] {
    if (all_work || how != "leaves") return job.alive();
    return std::vector<int>{0, 2};
  };

  std::unique_ptr<tutti::DataParallel> parallel;
  std::vector<int> members;
  for (int step = 1; step <= 12;) {
    if (step == 6 && all_work) {
      all_work = false;
      if (how == "leaves") parallel.reset();
      if (job.rank() == 1) {
        if (how == "leaves") return 0;
        if (how == "exits") _exit(3);
        if (how == "throws") throw std::runtime_error("a failure in step 6");
        raise(SIGKILL);
      }
    }
    try {
      if (!parallel) {
        members = workers();
        const tutti::Group group(job, members, "training");
        parallel = std::make_unique<tutti::DataParallel>(group, *model);
      }
      torch::manual_seed(100 + step);  // the same batch everywhere, of which each has its rows
      const auto x = torch::randn({12, 5});
      const auto y = torch::sin(x.slice(1, 0, 1));
      const auto [begin, end] = tutti::share_of(x.size(0), parallel->group());
      optimizer.zero_grad();
      loss = torch::mse_loss(model->forward(x.slice(0, begin, end)), y.slice(0, begin, end));
      parallel->next_weight(static_cast<double>(end - begin));
      loss.backward();
      optimizer.step();
      ++step;
    } catch (const tutti::PeerLost& lost) {  // a worker's process has ended
      const bool is_member = std::ranges::count(members, lost.rank()) > 0;
      if (!is_member) throw;  // the others are out of reach: this worker's host is cut off
      std::fprintf(stderr, "%s\n", lost.what());
      parallel.reset();
    } catch (const tutti::PeerFailed& failed) {  // a worker's step has failed: its process ends
      std::fprintf(stderr, "%s\n", failed.what());
      parallel.reset();
    }
  }
  std::printf("worker %d of %d ends with loss %.6f parameters sha256 %s\n",
              parallel->group().rank(), parallel->group().size(), loss.item<double>(),
              tutti::parameters_sha256(*model).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
