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

#include <sys/types.h>
#include <functional>

namespace tutti::command {

/// The end of a run.
struct RunEnd {
  int status = 0;
  int interrupted_by = 0;  ///< the signal that asked for the end; 0: none did
};

struct Kept {
  pid_t keeper = 0;
  /// Tells the keeper the end of the run: the launcher may still be killed afterwards.
  std::function<void(const RunEnd&)> settle;
};

/// Forks, and returns in the launcher alone, which gets SIGCONT when the keeper ends. The keeper
/// ends with the launcher's exit status, or by the signal that interrupted the run, as shells that
/// run a script expect.
Kept start_launcher();

}  // namespace tutti::command
