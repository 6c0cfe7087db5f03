#pragma once

// What the threads of this process do with the job: which of them use it, wait on the board,
// compute alone or are in a step. A thread that works for another one (helper_thread.h) is that
// one here.
//
// Threads: any.

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "base/helper_thread.h"

namespace tutti {

class LocalThreads {
 public:
  /// The calling thread uses the job.
  void note() noexcept {
    const void* first = nullptr;
    const void* const me = program_thread();
    if (!first_.compare_exchange_strong(first, me) && first != me)
      several_.store(true, std::memory_order_release);
  }
  /// More than one has used it.
  bool are_several() const { return several_.load(std::memory_order_acquire); }

  /// One wait at a time shows itself on the board; false where another one does.
  bool take_notice() { return !notice_taken_.exchange(true, std::memory_order_acquire); }
  void release_notice() noexcept { notice_taken_.store(false, std::memory_order_release); }

  /// See Alone; of the thread that has said it. Empty: nowhere.
  std::string alone_in() const {
    return alone_thread_.load() == program_thread() ? alone_in_ : std::string();
  }
  /// On one thread of the job at a time; of another one, empty changes nothing.
  void set_alone_in(std::string where) {
    const void* const me = program_thread();
    if (where.empty() && alone_thread_.load() != me) return;
    const void* const thread = where.empty() ? nullptr : me;
    alone_in_ = std::move(where);
    alone_thread_.store(thread);
  }

  /// See Stepping: the name of the step that another thread is in; empty: this thread is in one
  /// from now on, until it has called leave_step() as often.
  std::string enter_step(std::string who) {
    const std::lock_guard lock(stepping_mutex_);
    const void* const me = program_thread();
    if (stepping_depth_ > 0 && stepping_thread_ != me) return stepping_who_;
    if (stepping_depth_++ == 0) {
      stepping_thread_ = me;
      stepping_who_ = std::move(who);
    }
    return {};
  }
  void leave_step() noexcept {
    const std::lock_guard lock(stepping_mutex_);
    --stepping_depth_;
  }

 private:
  std::atomic<bool> notice_taken_{false};
  std::atomic<const void*> first_{nullptr};
  std::atomic<bool> several_{false};
  std::mutex stepping_mutex_;
  const void* stepping_thread_ = nullptr;
  int stepping_depth_ = 0;
  std::string stepping_who_;  ///< the outermost
  std::string alone_in_;      ///< of `alone_thread_`, which alone looks at it
  std::atomic<const void*> alone_thread_{nullptr};
};

}  // namespace tutti
