#pragma once

// The processes below this one, as /proc shows them: all that workers have started, even if it has
// left their process groups (`timeout`, `setsid`). No process below can leave, where this process
// is a child subreaper: it becomes the parent of orphans.
//
// Threads: one. Failure: where /proc is missing, or that of another namespace, no process is found.

#include <sys/types.h>
#include <chrono>
#include <span>
#include <vector>

namespace tutti::command {

/// Including ended ones that have not been waited for.
std::vector<pid_t> children_of(pid_t parent);

/// Kills all children but `spared`, and then those that became children by that, until none is left
/// or `limit` has passed. Returns those that live on. Where none is spared, it waits also for those
/// that /proc does not show.
std::vector<pid_t> end_children(std::span<const pid_t> spared, std::chrono::milliseconds limit);

/// Waits for children that have ended, other than `spared`. Never blocks.
void reap_children(std::span<const pid_t> spared);

/// Stops all processes below this one. Returns those that ran until now.
std::vector<pid_t> stop_descendants();

}  // namespace tutti::command
