#include "torch/gradients/fold_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>

namespace tutti {
namespace {

/// The tiles of one fold. Threads that come when all are taken only look at `next_`.
class SharedTiles {
 public:
  /// Keeps a reference, which is used until wait() has returned.
  SharedTiles(std::int64_t tiles, const std::function<void(std::int64_t)>& fold_tile)
      : tiles_(tiles), fold_tile_(fold_tile) {}

  /// Folds tiles until none is left to take.
  void work() noexcept {
    for (auto tile = next_.fetch_add(1); tile < tiles_; tile = next_.fetch_add(1)) {
      try {
        fold_tile_(tile);
      } catch (...) {
        note(std::current_exception());
      }
      if (folded_.fetch_add(1) + 1 == tiles_) folded_.notify_one();
    }
  }
  /// Only the first counts.
  void note(std::exception_ptr error) noexcept {
    if (!failed_.test_and_set()) error_ = std::move(error);
  }
  /// Returns when all tiles have been folded.
  void wait() {
    for (auto seen = folded_.load(); seen < tiles_; seen = folded_.load()) folded_.wait(seen);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::int64_t tiles_;
  const std::function<void(std::int64_t)>& fold_tile_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::int64_t> folded_{0};
  std::atomic_flag failed_;
  std::exception_ptr error_;
};

}  // namespace

int fold_threads(const GroupState& group) {
  const int asked = std::max(group.job().processors_per_worker(), at::get_num_threads());
  return std::min(asked, static_cast<int>(at::get_num_interop_threads()));
}

ForTiles tiles_on(int threads) {
  if (threads <= 1) return {};
  return [threads](std::int64_t tiles, const std::function<void(std::int64_t)>& fold_tile) {
    const auto shared = std::make_shared<SharedTiles>(tiles, fold_tile);
    try {
      for (auto n = std::min<std::int64_t>(threads, tiles); n > 1; --n) {
        at::launch([shared] { shared->work(); });
      }
    } catch (...) {
      shared->note(std::current_exception());
    }
    shared->work();
    shared->wait();
  };
}

}  // namespace tutti
