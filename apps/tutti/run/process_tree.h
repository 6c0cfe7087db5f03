#pragma once

// The processes below this one, as /proc shows them: all that workers have started, even if it has
// left their process groups (`timeout`, `setsid`). No process below can leave, because this process
// is a child subreaper: it becomes the parent of orphans.
//
// Threads: one. Failure: where /proc is missing, or that of another namespace, no process is found,
// and nothing happens; has_hidden_children() then tells whether there are any.

#include <sys/types.h>
#include <chrono>
#include <span>
#include <vector>

namespace tutti::command {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';                ///< as in /proc: 'Z' has ended, 'T' is stopped
  unsigned long long started = 0;  ///< clock ticks since the system's start
};
std::vector<ProcessEntry> all_processes();

/// All processes below it, including ended ones that have not been waited for.
std::vector<ProcessEntry> descendants_of(pid_t ancestor);

/// The numbers of those that are still there; one that another process has got since is not.
std::vector<pid_t> still_there(std::span<const ProcessEntry> processes);

/// Makes this process the parent of all processes below that lose their own.
void become_subreaper();

/// Kills all children but `spared`, and then those that became children by that, until none is left
/// or `limit` has passed. Returns those that live on.
std::vector<pid_t> end_children(std::span<const pid_t> spared, std::chrono::milliseconds limit);

/// True where a child that all_processes() does not show still lives after `limit`. All children
/// may be waited for.
bool has_hidden_children(std::chrono::milliseconds limit);

/// Waits for children that have ended, other than `spared`. Never blocks.
void reap_children(std::span<const pid_t> spared);

/// Stops all processes below this one. Returns those that ran until now.
std::vector<pid_t> stop_descendants();
/// Resumes the processes that stop_descendants() has returned.
void resume(std::span<const pid_t> stopped);

}  // namespace tutti::command
