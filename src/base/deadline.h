#pragma once

// A point in time until which a wait may last. Time is System's, so that tests can move it.

#include <chrono>

namespace tutti {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC: comparable between processes of a host

struct Deadline {
  Clock::time_point at = Clock::time_point::max();
  static Deadline after(Clock::time_point now, std::chrono::milliseconds d) { return {now + d}; }
  static Deadline never() { return {}; }
};

}  // namespace tutti
