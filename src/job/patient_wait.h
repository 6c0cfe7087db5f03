#pragma once

// The wait of a rendezvous for its answer: under a deadline, and asking now and then whether to go
// on.

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "job/rendezvous.h"

namespace tutti {

/// Waits on `told` until over(), under both limits. False when one of them ended it.
template <class Over>
bool wait_patiently(std::unique_lock<std::mutex>& lock, std::condition_variable& told,
                    const Over& over, Deadline deadline, const Patience& patience) {
  if (!patience && deadline.at == Clock::time_point::max()) {
    told.wait(lock, over);
    return true;
  }
  const auto until = [&] {
    return patience ? std::min(Clock::now() + kPatienceInterval, deadline.at) : deadline.at;
  };
  while (!told.wait_until(lock, until(), over)) {
    if (Clock::now() >= deadline.at) return false;
    lock.unlock();
    const bool goes_on = patience();
    lock.lock();
    if (!goes_on) return over();
  }
  return true;
}

}  // namespace tutti
