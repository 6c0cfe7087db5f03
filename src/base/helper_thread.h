#pragma once

// Threads beside those of the program that use a job: who they are has to be known, because a
// worker that waits can be relied on to do nothing else only if it has no other thread.
//
// Threads: functions may be called from any thread. Failure: as std::thread.

#include <functional>
#include <thread>

namespace tutti {

/// A thread of Tutti's own: it takes no signals, is marked as below, and carries a name of at most
/// 15 bytes that shows in debuggers.
std::thread start_helper_thread(const char* name, std::function<void()> body);

/// The calling thread will never use a job: until it ends, other_threads() passes over it.
void mark_helper_thread();

/// The number of threads of this process besides the caller and marked ones. A thread that is about
/// to mark itself may be counted.
int other_threads();

}  // namespace tutti
