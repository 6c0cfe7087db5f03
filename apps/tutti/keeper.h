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

#include "base/file_descriptor.h"

namespace tutti::command {

class KeptLauncher {
 public:
  /// Forks. Returns at once in the launcher, which gets SIGTERM when the keeper ends, and in the
  /// keeper when the launcher has ended.
  static KeptLauncher start();

  /// In the keeper: the exit status of both. Nothing in the launcher.
  std::optional<int> ended() const { return ended_; }
  /// In the launcher: this is the exit status, also if what is left to do should kill it.
  void settle(int status) const;

 private:
  std::optional<int> ended_;
  FileDescriptor status_line_;  // to the keeper
};

}  // namespace tutti::command
