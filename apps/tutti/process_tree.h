#pragma once

// The processes below this one, as /proc shows them: what workers have started, also what has left
// their process groups (`timeout`, `setsid`). Nobody below can leave, because this process is a
// child subreaper: what loses its parent becomes its child.
//
// Threads: one. Failure: where /proc is missing, or that of another namespace, nothing is found,
// and nothing happens.

#include <sys/types.h>
#include <chrono>
#include <span>
#include <vector>

namespace tutti::command {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';  ///< as in /proc: 'Z' has ended, 'T' is stopped
};
std::vector<ProcessEntry> all_processes();

/// Ended ones that nobody has waited for are among them.
std::vector<pid_t> children_of(pid_t parent);

/// Makes this process the parent of whoever below loses its own.
void become_subreaper();

/// Kills all children but `spared`, and then those that became children by that, until none is left
/// or `limit` has passed. Returns those that live on.
std::vector<pid_t> end_children(std::span<const pid_t> spared, std::chrono::milliseconds limit);

/// Waits for children that have ended, other than `spared`. Never blocks.
void reap_children(std::span<const pid_t> spared);

/// Stops all processes below this one. Returns those that ran until now.
std::vector<pid_t> stop_descendants();
/// Lets them go on: to be called with what stop_descendants() returned.
void resume(std::span<const pid_t> stopped);

}  // namespace tutti::command
