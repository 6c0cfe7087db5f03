#pragma once

// The signals that end, stop or resume a run, read from a descriptor instead of interrupting it,
// and the ends of children.
//
// Threads: made before any other thread, so that all inherit the blocked mask. SIGPIPE and
// SIGXFSZ are ignored from then on: a reader that went away, and a file that may not grow, show as
// errors of write. Failure: constructors throw Refusal.

#include <sys/types.h>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include "base/deadline.h"
#include "base/file_descriptor.h"

namespace tutti::command {

sigset_t only(int signal);

/// SIGTERM, SIGUSR1, SIGCONT, SIGCHLD, and SIGINT (a script's `&`), SIGHUP (nohup) and SIGTSTP
/// unless they are ignored: blocked from its construction on. A SIGTSTP stays pending until it is
/// obeyed: a SIGCONT that comes before this process has stopped cancels it, at whatever moment.
class RunSignals {
 public:
  RunSignals();
  /// Readable when a signal has come.
  int descriptor() const { return file_.get(); }
  /// Takes the next signal, but for SIGTSTP; 0: none has come, and this has not to wait for one.
  int next(bool waits = false) const;
  bool is_stop_pending() const;
  /// This process stops until SIGCONT. Nothing where a SIGCONT has cancelled the SIGTSTP.
  void obey_stop() const;

 private:
  FileDescriptor file_;
  sigset_t taken_{};  // all but SIGTSTP
};

class SignalInbox {
 public:
  /// `keeper` is the process that started this one.
  explicit SignalInbox(pid_t keeper);
  /// Readable when a signal has come.
  int descriptor() const { return signals_.descriptor(); }
  /// The next request for the end that has come, if any. One request may come as several signals:
  /// sent to each process of the run it comes from the sender and from the keeper. What comes soon
  /// after the first belongs to it. A signal that asks for a stop is obeyed here: this process and
  /// all below it stop until SIGCONT.
  std::optional<int> next();
  /// A child has ended since the last call; to be asked after next().
  bool child_ended() { return std::exchange(child_ended_, false); }
  /// The process that started this one, the keeper, has ended.
  bool abandoned() const;

 private:
  void obey_stop();

  RunSignals signals_;
  pid_t keeper_;
  std::optional<Clock::time_point> first_request_;
  bool child_ended_ = false;
};

}  // namespace tutti::command
