#pragma once

// A small process that outlives a `tutti run` killed by SIGKILL just long enough to end what its
// workers started: the workers themselves die with the launcher, but not their children.
//
// Threads: start() while the launcher has one thread. Failure: Refusal.

#include <sys/types.h>

#include "base/file_descriptor.h"

namespace tutti::command {

class GroupGuard {
 public:
  static GroupGuard start();
  /// Lets the guard go: all groups have ended.
  ~GroupGuard();
  GroupGuard(GroupGuard&& other) noexcept;
  GroupGuard& operator=(GroupGuard&&) = delete;

  /// From now on this process group ends with the launcher.
  void watch(pid_t group) const noexcept;

 private:
  GroupGuard(pid_t pid, FileDescriptor line) : pid_(pid), line_(std::move(line)) {}

  pid_t pid_ = -1;
  FileDescriptor line_;  // its closing by the launcher's death is what the guard waits for
};

}  // namespace tutti::command
