#pragma once

// Threads beside those of the program that use a job: who they are has to be known, because a
// worker that waits can be relied on to do nothing else only if it has no other thread.
//
// Libtorch calls the hooks and callbacks of a backward on a device by threads of its own, while the
// program's thread waits in backward(): what those do with a job is that thread's doing.
//
// Threads: functions may be called from any thread. Failure: IoError where the system has no room
// for a thread, with the limits that may be the reason.

#include <sys/types.h>

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

/// The number of threads of this process besides the caller, the one that it works for and marked
/// ones. A thread that is about to mark itself may be counted.
int other_threads();

struct ProgramThread {
  const void* mark = nullptr;  ///< differs from those of all other threads
  pid_t number = 0;            ///< the system's
  /// The calling thread itself.
  static ProgramThread own() noexcept;
};

/// The mark of the thread that the calling one works for: its own, but for a WorksFor.
const void* program_thread() noexcept;
/// While it lives the calling thread works for another one, which waits for it. A thread that has
/// done so counts as a helper from then on.
class WorksFor {
 public:
  explicit WorksFor(const ProgramThread& other);
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;

 private:
  ProgramThread before_;
};

}  // namespace tutti
