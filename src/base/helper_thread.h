#pragma once

// Threads beside those of the program that use a job: who they are has to be known, because a
// worker that waits can be relied on to do nothing else only if it has no other thread.
//
// Threads: functions may be called from any thread. Failure: IoError where the system has no room
// for a thread, with the limits that may be the reason.

#include <csignal>
#include <functional>
#include <thread>

namespace tutti {

/// A thread of Tutti's own: it takes no signals, is marked as below, and carries a name of at most
/// 15 bytes that shows in debuggers.
std::thread start_helper_thread(const char* name, std::function<void()> body);

/// The calling thread will never use a job: until it ends, other_threads() passes over it.
void mark_helper_thread();

/// As long as it exists, threads that the calling thread starts, and those that they start, count
/// as marked ones: for engines, whose threads are not in our hands. They are known by two signals
/// that nobody sends: they block the one and not the other, as neither a thread that takes signals
/// does nor one that blocks all.
class StartsHelpers {
 public:
  StartsHelpers() noexcept;
  StartsHelpers(const StartsHelpers&) = delete;
  StartsHelpers& operator=(const StartsHelpers&) = delete;
  ~StartsHelpers();

 private:
  sigset_t before_{};
};
/// All signals but one: threads with this mask take none, and count as above.
sigset_t signals_of_helpers() noexcept;

/// The number of threads of this process besides the caller and marked ones. A thread that is about
/// to mark itself may be counted.
int other_threads();

}  // namespace tutti
