#pragma once

// The wait of a rendezvous for its answer, under a deadline, and with a periodic check whether to
// continue.

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "job/wire/rendezvous.h"

namespace tutti {

/// A wait that exceeds its limit by this time is that of a stopped process.
inline constexpr std::chrono::seconds kStopped{1};

/// Waits on `told` until over(), under both limits. False when one of them ended it. Time in which
/// this process was stopped does not count.
template <class Over>
bool wait_patiently(std::unique_lock<std::mutex>& lock, std::condition_variable& told,
                    const Over& over, Deadline deadline, const Patience& patience) {
  if (!patience && deadline.at == Clock::time_point::max()) {
    told.wait(lock, over);
    return true;
  }
  const auto never = Clock::time_point::max();
  for (;;) {
    const auto until = std::min(Clock::now() + kPatienceInterval, deadline.at);
    if (told.wait_until(lock, until, over)) return true;
    const auto now = Clock::now();
    if (now - until >= kStopped && deadline.at != never) deadline.at += now - until;
    if (now >= deadline.at) return false;
    if (!patience) continue;
    lock.unlock();
    const bool goes_on = patience();
    lock.lock();
    if (!goes_on) return over();
  }
}

}  // namespace tutti
