// Fault tolerance: when a worker dies, the others resume from the last checkpoint without it, and
// end with the bytes of a run in which nobody died.
//
//   build/bin/tutti run --survivors -n 3 build/bin/fault_tolerance FOLDER [STEPS]
//
// `kill -9` one of the processes that the first lines name. With a third argument a worker fails by
// itself in step 15: "shard" by an exception in its shard, "step" by one between two steps.

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "tutti/tutti.h"

namespace {

struct Settings {
  std::string folder;  ///< of the checkpoints
  std::int64_t steps = 200;
  std::string failure = {};  ///< "", "shard" or "step"
};

/// From the newest checkpoint of this run, or from the start, to the last step.
void train(const tutti::Group& group, const Settings& settings) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  tutti::Trainer trainer(group, *model, tutti::Adam{.lr = 1e-2}, {.shards = 6, .seed = 1});
  trainer.load(settings.folder, {.fall_back = true, .of_this_run = true});
  std::printf("worker %d of %d resumes after step %lld\n", group.rank(), group.size(),
              static_cast<long long>(trainer.steps()));

  // The third of three workers, unless one was lost.
  const auto fails = [&](const char* where) {
    return settings.failure == where && trainer.steps() == 14 && group.rank() == 2;
  };
  while (trainer.steps() < settings.steps) {
    if (fails("step")) throw std::runtime_error("a failure between two steps");
    const auto result = trainer.step([&](tutti::Shard& shard) {
      if (fails("shard")) throw std::runtime_error("a failure in a shard");
      const auto x = torch::randn({16, 8});  // by the shard's seed
      const auto y = torch::sin(x.slice(1, 0, 1)) + x.slice(1, 1, 2);
      return shard.loss(torch::mse_loss(model->forward(x), y));
    });
    if (result.step % 10 == 0) trainer.save(settings.folder, {.keep = 2});
    if (result.step % 50 == 0 && group.rank() == 0) {
      std::printf("step %lld loss %.4f\n", static_cast<long long>(result.step), result.loss);
    }
  }
  std::printf("worker %d of %d ends with parameters sha256 %s\n", group.rank(), group.size(),
              tutti::parameters_sha256(*model).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::invalid_argument("usage: fault_tolerance FOLDER [STEPS [shard|step]]");
  Settings settings{.folder = argv[1]};
  if (argc > 2) settings.steps = std::stoll(argv[2]);
  if (argc > 3) settings.failure = argv[3];

  const auto job = tutti::Job::join();
  std::printf("worker %d is process %d\n", job.rank(), getpid());
  std::vector<int> disagreed;  // workers of the attempt that ended in a Mismatch
  for (;;) {
    const std::vector<int> workers = job.alive();
    try {
      train(tutti::Group(job, workers, "training"), settings);
      return 0;
    } catch (const tutti::PeerLost& lost) {  // a worker's process has ended
      const bool is_member = std::ranges::count(workers, lost.rank()) > 0;
      if (!is_member) throw;  // the others are out of reach: this worker's host is cut off
      std::fprintf(stderr, "%s\n", lost.what());
    } catch (const tutti::PeerFailed& failed) {  // a worker's step has failed: its process ends
      std::fprintf(stderr, "%s\n", failed.what());
    } catch (const tutti::Mismatch& mismatch) {  // a worker has ended its Trainer: likewise
      if (workers == disagreed) throw;           // nobody was lost meanwhile: they do disagree
      disagreed = workers;
      std::fprintf(stderr, "%s\n", mismatch.what());
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
