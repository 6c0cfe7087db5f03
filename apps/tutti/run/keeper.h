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
#include <optional>

#include "base/file_descriptor.h"

namespace tutti::command {

/// The end of a run.
struct RunEnd {
  int status = 0;
  int interrupted_by = 0;  ///< the signal that asked for the end; 0: none did
};

class KeptLauncher {
 public:
  /// Forks. Returns at once in the launcher, which gets SIGCONT when the keeper ends, and in the
  /// keeper when the launcher has ended.
  static KeptLauncher start();

  /// The exit status of both in the keeper; empty in the launcher.
  std::optional<int> ended() const { return ended_; }
  /// In the keeper, ends this process by the signal that interrupted the run, if one did, as shells
  /// that run a script expect. Returns where that has no effect, as in the first process of a
  /// container.
  void end_by_signal() const;
  /// The keeper's process id, in the launcher.
  pid_t keeper() const { return keeper_; }
  /// Tells the keeper the end of the run, in the launcher, which may still be killed afterwards.
  void settle(const RunEnd& end) const;

 private:
  std::optional<int> ended_;
  int interrupted_by_ = 0;
  pid_t keeper_ = 0;
  FileDescriptor status_line_;  // to the keeper
};

}  // namespace tutti::command
