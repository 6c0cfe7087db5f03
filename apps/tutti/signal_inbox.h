#pragma once

// The signals that end, stop or resume a run, read from a descriptor instead of interrupting it,
// and the ends of children.
//
// Threads: made before any other thread, so that all inherit the blocked mask. SIGPIPE and
// SIGXFSZ are ignored from then on: a reader that went away, and a file that may not grow, show as
// errors of write.

#include <sys/types.h>
#include <csignal>
#include <optional>
#include <utility>

#include "base/file_descriptor.h"

namespace tutti::command {

/// SIGINT, SIGTERM, SIGCONT, SIGCHLD, and SIGHUP (nohup) and SIGTSTP unless they are ignored:
/// blocked from now on. Returns them.
sigset_t block_run_signals();

class SignalInbox {
 public:
  /// Takes what block_run_signals() blocks. Throws Refusal.
  SignalInbox();
  /// Readable when a signal has come.
  int descriptor() const { return file_.get(); }
  /// The next signal that has come and asks for the end, if any. One that asks for a stop is obeyed
  /// here: this process and all below it stop until SIGCONT.
  std::optional<int> next();
  /// A child has ended since the last call; to be asked after next().
  bool child_ended() { return std::exchange(child_ended_, false); }
  /// The process that started this one, the keeper, has ended.
  bool abandoned() const;

 private:
  FileDescriptor file_;
  pid_t parent_;
  bool child_ended_ = false;
};

}  // namespace tutti::command
