#include "job/progress_thread.h"

#include <cfenv>
#include <chrono>
#include <new>
#include <utility>

#include "base/futex.h"
#include "base/helper_thread.h"
#include "job/wire/board.h"

namespace tutti {
namespace {

/// Sleepers are woken before: an upper bound.
constexpr std::chrono::seconds kLongSleep{10};
/// For what becomes possible by time alone: a failure that is due.
constexpr std::chrono::milliseconds kRetry{100};

}  // namespace

ProgressThread::ProgressThread(JobState& job, std::function<void()> move)
    : job_(job), move_(std::move(move)) {
  thread_ = start_helper_thread("tutti-progress", [this] { run(); });
}

ProgressThread::~ProgressThread() {
  if (!process_.is_own()) {
    new (std::nothrow) std::thread(std::move(thread_));
    return;
  }
  pause();
  state_.store(kEnded, std::memory_order_release);
  futex_wake_all(state_);
  thread_.join();
}

void ProgressThread::resume() noexcept {
  if (state_.load(std::memory_order_acquire) != kPaused) return;
  std::fegetenv(&arithmetic_);
  state_.store(kMoving, std::memory_order_release);
  futex_wake_all(state_);
}

void ProgressThread::pause() noexcept {
  if (!process_.is_own()) return;
  std::uint32_t state = kMoving;
  if (state_.compare_exchange_strong(state, kPausing, std::memory_order_acq_rel)) {
    announce(job_.board());
  }
  while (state_.load(std::memory_order_acquire) == kPausing) {
    futex_wait(state_, kPausing, kLongSleep);
  }
}

void ProgressThread::run() {
  for (;;) {
    const auto state = state_.load(std::memory_order_acquire);
    if (state == kEnded) return;
    if (state == kPaused) {
      futex_wait(state_, kPaused, kLongSleep);
      continue;
    }
    move_until_paused();
    state_.store(kPaused, std::memory_order_release);
    futex_wake_all(state_);
  }
}

void ProgressThread::move_until_paused() {
  auto& board = job_.board();
  const Sleeper sleeper(board, job_.slot(job_.identity().rank));
  std::fesetenv(&arithmetic_);
  try {
    for (;;) {
      const auto event = board.event.load(std::memory_order_acquire);
      if (state_.load(std::memory_order_acquire) != kMoving) break;
      move_();
      futex_wait(board.event, event, kRetry);
    }
  } catch (...) {  // the owner meets it again
  }
}

}  // namespace tutti
