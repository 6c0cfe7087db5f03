#pragma once

// The signals that end a run, read from a descriptor instead of interrupting it.
//
// Threads: made before any other thread, so that all inherit the blocked mask. SIGPIPE is ignored
// from then on: a reader that went away shows as an error of write.

#include <optional>

#include "base/file_descriptor.h"

namespace tutti::command {

class SignalInbox {
 public:
  /// Takes SIGINT, SIGTERM, and SIGHUP unless it is ignored (nohup). Throws Refusal.
  SignalInbox();
  /// Readable when a signal has come.
  int descriptor() const { return file_.get(); }
  /// The next signal that has come, if any.
  std::optional<int> next();

 private:
  FileDescriptor file_;
};

}  // namespace tutti::command
