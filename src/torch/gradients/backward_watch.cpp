#include "torch/gradients/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "torch/gradients/running_backward.h"

namespace tutti {
namespace {

/// Where the running backward leaves its result, or its exception.
c10::intrusive_ptr<at::ivalue::Future> result_of_running_backward() {
  const auto* const task = running_backward();
  if (task == nullptr) return {};
  return task->future_result_;
}

}  // namespace

class BackwardWatch::State {
 public:
  State(Completed completed, Aborted aborted)
      : completed_(std::move(completed)),
        aborted_(std::move(aborted)),
        result_(result_of_running_backward()) {}

  void complete() {
    Completed completed;
    {
      const std::lock_guard lock(mutex_);
      if (!is_told_.exchange(true)) completed = std::move(completed_);
    }
    if (completed) completed();
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    if (is_told_.exchange(true)) return;
    const bool has_error = result_ && result_->completed() && result_->hasError();
    aborted_(has_error ? result_->exception_ptr() : nullptr);
  }
  void settle() {
    // Its caller waits in a backward until there is a result.
    if (!is_told_ && result_ && result_->completed()) abort();
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    is_told_ = true;
  }

 private:
  std::mutex mutex_;  ///< held while it is told that the backward was aborted
  std::atomic<bool> is_told_{false};
  Completed completed_;
  Aborted aborted_;
  c10::intrusive_ptr<at::ivalue::Future> result_;
};

/// Lives in a backward's list of final callbacks.
class BackwardWatch::Guard {
 public:
  explicit Guard(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Guard() { state_->abort(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  void complete() { state_->complete(); }

 private:
  std::shared_ptr<State> state_;
};

void BackwardWatch::watch(Completed completed, Aborted aborted) {
  leave();
  state_ = std::make_shared<State>(std::move(completed), std::move(aborted));
  auto guard = std::make_shared<Guard>(state_);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [guard = std::move(guard)] { guard->complete(); });
}

void BackwardWatch::entered() {
  settle();
  if (on_device_) program_ = ProgramThread::own();
}

std::optional<WorksFor> BackwardWatch::hooked() const {
  settle();
  if (!on_device_) return {};
  return std::optional<WorksFor>(std::in_place, program_);
}

void BackwardWatch::settle() const {
  if (state_) state_->settle();
}

void BackwardWatch::leave() {
  if (state_) state_->leave();
}

}  // namespace tutti
