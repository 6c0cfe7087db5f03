// What TrainerOptions::speeds gains where workers are not equally fast. Two workers, each on a
// processor of its own; that of rank 1 is shared with a process that only counts, so that it is
// half as fast. Two Trainers of equal models take turns: one with equal shares, one told {2, 1}.
//
//   tutti run -n 2 bench_speeds ROUNDS
//
// Rank 0 prints, as JSON, the nanoseconds of each round of steps by shares.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tutti/tutti.h"

namespace {

constexpr std::int64_t kShards = 12;
constexpr std::int64_t kRows = 64;  ///< of a shard
constexpr int kSteps = 5;           ///< of a round

/// On the `which`-th of the processors that this process may use.
void stay_on(int which) {
  cpu_set_t all;
  cpu_set_t own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) <= which) {
    throw std::runtime_error("bench_speeds needs two processors");
  }
  for (int processor = 0; CPU_COUNT(&own) == 0; ++processor) {
    if (CPU_ISSET(processor, &all) && which-- == 0) CPU_SET(processor, &own);
  }
  sched_setaffinity(0, sizeof own, &own);
}

/// Takes half of this worker's processor for as long as the worker lives.
void share_processor() {
  const auto parent = getpid();
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  for (std::atomic<std::uint64_t> count{0};;) ++count;
}

struct Training {
  Training(const tutti::Group& group, std::vector<double> speeds, std::uint64_t seed)
      : model(torch::nn::Linear(512, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 512)),
        trainer(group, *model, tutti::Sgd{.lr = 1e-3},
                {.shards = kShards,
                 .seed = seed,
                 .name = speeds.empty() ? "equal" : "by speed",
                 .speeds = std::move(speeds),
                 .audit_every = 0}) {}
  void steps() {
    for (int step = 0; step < kSteps; ++step) {
      trainer.step([&](tutti::Shard& shard) {
        return shard.loss(model->forward(torch::randn({kRows, 512})).square().mean());
      });
    }
  }
  torch::nn::Sequential model;
  tutti::Trainer trainer;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "tutti run -n 2 bench_speeds ROUNDS\n";
    return 2;
  }
  const auto job = tutti::Job::join();
  stay_on(job.rank());
  if (job.rank() == 1) share_processor();
  const tutti::Group group(job);
  Training equal(group, {}, 1);
  Training by_speed(group, {2, 1}, 2);
  equal.steps();
  by_speed.steps();
  const int rounds = std::stoi(argv[1]);
  std::array<std::vector<std::int64_t>, 2> times;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < 2; ++turn) {
      const auto which = (turn + static_cast<std::size_t>(round)) % 2;
      group.barrier();
      const auto begin = std::chrono::steady_clock::now();
      (which == 0 ? equal : by_speed).steps();
      times[which].push_back((std::chrono::steady_clock::now() - begin) /
                             std::chrono::nanoseconds(1));
    }
  }
  if (job.rank() != 0) return 0;
  const char* separator = "{";
  for (const auto which : {0, 1}) {
    std::cout << separator << (which == 0 ? "\"equal\": [" : "\"by speed\": [");
    for (int round = 0; round < rounds; ++round) {
      std::cout << (round == 0 ? "" : ", ") << times[which][static_cast<std::size_t>(round)];
    }
    std::cout << ']';
    separator = ", ";
  }
  std::cout << "}\n";
}
