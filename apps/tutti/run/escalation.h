#pragma once

// How workers are asked to end: first by themselves, then by SIGTERM, then by SIGKILL. A plan over
// time, without effects: Run sends what is due.

#include <chrono>
#include <csignal>
#include <optional>

#include "base/deadline.h"

namespace tutti::command {

/// Time for the other workers to report a failure and to end by themselves.
inline constexpr std::chrono::milliseconds kGrace = std::chrono::seconds(1);
/// Time from SIGTERM to SIGKILL.
inline constexpr std::chrono::milliseconds kTermination = std::chrono::seconds(2);

class Escalation {
 public:
  /// `termination`: from SIGTERM to SIGKILL.
  explicit Escalation(std::chrono::milliseconds termination = kTermination)
      : termination_(termination) {}
  bool begun() const { return stage_ != Stage::none; }
  /// Starts the clock; later calls change nothing.
  void begin(Clock::time_point now) {
    if (begun()) return;
    stage_ = Stage::grace;
    next_ = now + kGrace;
  }
  /// SIGKILL is due at once.
  void hurry(Clock::time_point now) {
    if (stage_ == Stage::killed) return;
    stage_ = Stage::terminated;
    next_ = now;
  }
  /// The signal that is due now, each once.
  std::optional<int> due(Clock::time_point now) {
    if (!next_ || now < *next_) return {};
    if (stage_ == Stage::grace) {
      stage_ = Stage::terminated;
      next_ = now + termination_;
      return SIGTERM;
    }
    stage_ = Stage::killed;
    next_.reset();
    return SIGKILL;
  }
  std::optional<Clock::time_point> next() const { return next_; }

 private:
  enum class Stage { none, grace, terminated, killed };
  std::chrono::milliseconds termination_;
  Stage stage_ = Stage::none;
  std::optional<Clock::time_point> next_;
};

}  // namespace tutti::command
