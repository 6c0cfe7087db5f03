#pragma once

// A thread that takes something further while the program computes: what has been started and needs
// its worker now and then, between two calls of the program.
//
// Threads: one owner. What is moved belongs to the thread from resume() to pause(), and to the
// owner else. Failure: std::system_error where no thread can be made.

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/process_mark.h"
#include "job/job_state.h"

namespace tutti {

class ProgressThread {
 public:
  /// `move` does what can be done without waiting. What it throws ends the thread's part until the
  /// next resume(), and nobody else hears of it: the owner moves what is left, and meets it again.
  ProgressThread(JobState& job, std::function<void()> move);
  /// Pauses.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Calls `move` now, and after each announce() on the board, with the caller's rounding and its
  /// treatment of subnormal numbers: which of the two threads adds up decides no bit.
  void resume() noexcept;
  /// Returns once the thread is outside of `move`, and will not call it. In a child of fork(),
  /// which has no such thread, at once.
  void pause() noexcept;

 private:
  enum State : std::uint32_t { kPaused, kMoving, kPausing, kEnded };
  void run();
  void move_until_paused();

  JobState& job_;
  std::function<void()> move_;
  std::atomic<std::uint32_t> state_{kPaused};
  std::fenv_t arithmetic_{};  ///< of who has called resume()
  ProcessMark process_;
  std::thread thread_;
};

}  // namespace tutti
