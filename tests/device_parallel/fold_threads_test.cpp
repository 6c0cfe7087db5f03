// Threads of the host that share the folds of a model on a device.

#include "torch/gradients/fold_threads.h"

#include <dirent.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <latch>
#include <memory>
#include <stdexcept>

#include "device_parallel/device_workers.h"
#include "support/log_capture.h"

namespace tutti::test::fold_threads_cases {
namespace {

using test_device::Held;

/// Threads of libtorch's inter-op pool in this process, which nothing else here starts.
int pool_threads() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/task"), ::closedir);
  int found = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    std::string name;
    std::getline(std::ifstream("/proc/self/task/" + std::string(entry->d_name) + "/comm"), name);
    found += name == "PTThreadPool" ? 1 : 0;
  }
  return found;
}

/// Three micro-batches a worker; each has a part of the tiles of a matrix of 350000 elements.
std::string trained(const Job& job, c10::Device where, int threads) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(threads);
  torch::manual_seed(1);
  const LogCapture log;
  torch::nn::Sequential model(torch::nn::Linear(6, 700), torch::nn::Tanh(),
                              torch::nn::Linear(700, 500), torch::nn::Linear(500, 3));
  model->to(where);
  DataParallel parallel(job, *model);
  const auto said = threads == 1 ? std::string("sums by 1 thread of the host;")
                                 : "sums by " + std::to_string(threads) + " threads of the host;";
  EXPECT_EQ(log.count(said), job.rank() == 0 && !where.is_cpu() ? 1 : 0);
  auto sgd = momentum_and_decay(model->parameters());
  for (std::uint64_t step = 1; step <= 3; ++step) {
    model->zero_grad();
    auto scope = parallel.accumulate({.micro_batches = 3});
    for (std::uint64_t k = 0; k < 3; ++k) {
      scope.micro_batch(1, [&] {
        const Batch batch(2, step * 100 + static_cast<std::uint64_t>(job.rank()) * 3 + k);
        return torch::mse_loss(model->forward(batch.x.to(where)), batch.y.to(where));
      });
    }
    scope.finish();
    sgd.step();
  }
  expect_equal_everywhere(parallel.group(), *model);
  return parameters_sha256(*model);
}

// promise: gpu#what-it-costs
TEST(FoldThreads, DecideNoByte) {
  for (const int size : {1, 2, 3}) {
    // On several intra-op threads operators of the CPU may round otherwise.
    const auto cpu =
        text_of_rank_0(size, [](const Job& job) { return trained(job, torch::kCPU, 1); });
    EXPECT_FALSE(cpu.empty());
    for (const auto held : kProfiles) {
      for (const int threads : {1, 3}) {
        const auto device = text_on_device_rank_0(size, held, [&](const Job& job) {
          auto bytes = trained(job, local_device(job), threads);
          EXPECT_EQ(pool_threads(), threads == 1 ? 0 : 3);
          return bytes;
        });
        EXPECT_TRUE(device == cpu) << size << " workers, " << threads << " threads";
      }
    }
  }
}

TEST(FoldThreads, WorkBesideOneAnother) {
  on_device_workers(1, Held::kSideStreams, [](const Job&) {
    at::set_num_interop_threads(3);
    EXPECT_FALSE(tiles_on(1));
    const auto for_tiles = tiles_on(3);
    for (int time = 0; time < 100; ++time) {
      std::latch all(3);  // never opens for fewer
      for_tiles(3, [&](std::int64_t) { all.arrive_and_wait(); });
    }
    std::array<int, 50> done{};
    for_tiles(50, [&](std::int64_t tile) { ++done[static_cast<std::size_t>(tile)]; });
    EXPECT_EQ(std::ranges::count(done, 1), 50);
  });
}

TEST(FoldThreads, AreNotWaitedForWhereTheyHaveOtherWork) {
  on_device_workers(1, Held::kSideStreams, [](const Job&) {
    at::set_num_interop_threads(2);
    std::latch end(1);
    std::latch ended(2);
    for (int k = 0; k < 2; ++k) {
      at::launch([&] {
        end.wait();
        ended.count_down();
      });
    }
    int folded = 0;
    tiles_on(2)(5, [&](std::int64_t) { ++folded; });
    EXPECT_EQ(folded, 5);
    end.count_down();
    ended.wait();
  });
}

TEST(FoldThreads, PassOnWhatATileThrows) {
  on_device_workers(1, Held::kSideStreams, [](const Job&) {
    at::set_num_interop_threads(3);
    for (const std::int64_t bad : {0, 7}) {
      std::atomic<int> folded = 0;
      const auto text = text_of<std::runtime_error>([&] {
        tiles_on(3)(8, [&](std::int64_t tile) {
          ++folded;
          if (tile == bad) throw std::runtime_error("no memory");
        });
      });
      EXPECT_EQ(text, "no memory");
      EXPECT_EQ(folded, 8) << "nobody uses the fold any more";
    }
  });
}

// promise: gpu#what-it-costs
TEST(FoldThreads, AreTheProcessorsOfTheHostDividedByItsWorkers) {
  for (const int size : {1, 2, 3}) {
    on_device_workers(size, Held::kSideStreams, [](const Job& job) {
      const auto& state = *Group(job).state();
      const int each = std::max(1, state.job().system().processors() / job.size());
      EXPECT_EQ(state.job().processors_per_worker(), each);
      at::set_num_threads(1);
      EXPECT_EQ(fold_threads(state), each);
      at::set_num_interop_threads(each + 4);
      at::set_num_threads(each + 2);
      EXPECT_EQ(fold_threads(state), each + 2) << "the program has said more";
      at::set_num_threads(each + 9);
      EXPECT_EQ(fold_threads(state), each + 4) << "no more than the pool has";
    });
  }
}

}  // namespace
}  // namespace tutti::test::fold_threads_cases
