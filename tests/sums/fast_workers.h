#pragma once

// Workers whose gradients an engine adds up.

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "sums/gloo_backend.h"
#include "torch/training.h"

namespace tutti::test {

/// Makes a worker's engine.
using MakeEngine = std::function<std::shared_ptr<SumEngine>(const Job&)>;

/// Runs `body` on that many workers, with an engine over Gloo for each.
inline void on_gloo_workers(int size,
                            const std::function<void(const Job&, const MakeEngine&)>& body) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("tutti_sums_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  on_workers(size, [&](const Job& job) {
    int made = 0;
    body(job, [&](const Job& own) {
      const auto file = folder / std::to_string(made++);
      return c10d_engine(gloo_backend(own.rank(), own.size(), file.string()));
    });
  });
  std::filesystem::remove_all(folder);
}

/// An engine that calls another one, and does something before.
class WatchedEngine : public SumEngine {
 public:
  explicit WatchedEngine(std::shared_ptr<SumEngine> engine) : engine_(std::move(engine)) {}
  std::string name() const override { return engine_->name(); }
  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  void all_reduce(const torch::Tensor& flat) override {
    ++begun;
    if (on_begin) on_begin(flat);
    engine_->all_reduce(flat);
  }
  bool finished() override {
    return on_finished ? on_finished() && engine_->finished() : engine_->finished();
  }
  void abort() noexcept override {
    ++aborted;
    engine_->abort();
  }

  std::function<void(const torch::Tensor&)> on_begin;
  std::function<bool()> on_finished;
  int begun = 0;
  int aborted = 0;

 private:
  std::shared_ptr<SumEngine> engine_;
};

}  // namespace tutti::test
