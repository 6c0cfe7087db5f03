#pragma once

// The process that the user starts does not run the workers itself: it forks the launcher, which
// does, and keeps watch over it. Whichever of the two ends first, by SIGKILL as well, the other one
// ends everything that workers have started: both are child subreapers, so that nothing below can
// leave them.
//
// The keeper passes on the signals that end, stop or resume a run. The launcher leads a process
// group of its own, so that it gets a terminal's signals once, from the keeper, and that a SIGKILL
// to the keeper's group spares it.
//
// Threads: to be called while this process has one. Failure: Refusal.

#include <optional>

namespace tutti::command {

/// Returns nothing in the launcher, which gets SIGTERM when the keeper ends. In the keeper, returns
/// when the launcher has ended: the exit status of both.
std::optional<int> keep_launcher();

}  // namespace tutti::command
