#pragma once

// How workers that know nothing of each other exchange a few bytes and descriptors: used to join,
// and to make groups and arenas. Everything after that goes through shared memory.
//
// The launcher serves it over inherited socket pairs (socket_rendezvous.h); ranks that are threads
// use MeetingPoint (meeting_point.h).

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/file_descriptor.h"

namespace tutti {

struct Parcel {
  std::string bytes;
  std::vector<FileDescriptor> descriptors;
};

/// Whether to go on waiting.
using Patience = std::function<bool()>;
inline constexpr std::chrono::milliseconds kPatienceInterval{100};

/// Waits on `told` until over(), under both limits. False when one of them ended it.
template <class Over>
bool wait_patiently(std::unique_lock<std::mutex>& lock, std::condition_variable& told,
                    const Over& over, Deadline deadline, const Patience& patience) {
  while (!over()) {
    if (!patience && deadline.at == Clock::time_point::max()) {
      told.wait(lock, over);
      return true;
    }
    const auto next = Clock::now() + kPatienceInterval;
    if (told.wait_until(lock, patience ? std::min(next, deadline.at) : deadline.at, over)) break;
    if (Clock::now() >= deadline.at) return false;
    if (!patience) continue;
    lock.unlock();
    const bool goes_on = patience();
    lock.lock();
    if (!goes_on && !over()) return false;
  }
  return true;
}

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Every worker of `ranks` (job ranks, ascending, the caller among them) gives a parcel under the
  /// same tag and gets all of them, in the order of `ranks`. A tag is used once per set of ranks.
  /// Throws Timeout naming who has not come, PeerLost when one of `ranks` has ended before giving.
  /// `patience`, where given, is asked every kPatienceInterval while others are waited for: false
  /// ends the wait as the deadline does.
  virtual std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks,
                                         Parcel mine, Deadline deadline,
                                         const Patience& patience) = 0;
  std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks, Parcel mine,
                                 Deadline deadline) {
    return all_gather(tag, ranks, std::move(mine), deadline, {});
  }

  /// Tells whoever watches the workers that this one failed because of `culprit` (a job rank), so
  /// that the first cause is reported, not its echo. Never throws.
  virtual void blame(int culprit, const std::string& text) noexcept = 0;
};

}  // namespace tutti
