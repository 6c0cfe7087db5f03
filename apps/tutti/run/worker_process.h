#pragma once

// One worker as the launcher sees it: a child process that leads its own process group, dies with
// the launcher, reads nothing and writes into two pipes.
//
// The ended child stays a zombie until this object goes, so that its group's number cannot be given
// to strangers while signals may still be sent to it.
//
// Threads: start() from the main thread, because a child dies with the thread that started it.
// Failure: start() throws Refusal when the program cannot be executed or the system gives no
// process.

#include <sys/resource.h>
#include <sys/types.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"

namespace tutti::command {

/// The end of a process.
struct Ending {
  bool by_signal = false;
  int code = 0;  ///< exit status, or the signal's number

  bool success() const { return !by_signal && code == 0; }
  /// The exit status that a shell reports.
  int exit_status() const;
  /// "exit status 3", "killed by signal SIGSEGV (11)"
  std::string describe() const;
};

/// "SIGTERM"
std::string signal_name(int signal);

struct StartOptions {
  std::string path;                    ///< file to execute
  std::vector<std::string> arguments;  ///< arguments[0] is the program's name
  std::vector<std::string> environment;
  int inherited_fd = -1;  ///< the one descriptor besides 0, 1, 2 that it gets: all others of this
                          ///< process are closed on exec
  std::vector<unsigned long> processors;  ///< mask; empty: anywhere
  rlimit descriptors{};                   ///< its limit on open files
  /// Its standard input is a pipe that begins with this text; by default /dev/null.
  std::optional<std::string> input = {};
};

class WorkerProcess {
 public:
  static WorkerProcess start(const StartOptions& options);
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable once the process has ended.
  int end_descriptor() const { return end_.get(); }
  FileDescriptor& output() { return output_; }
  FileDescriptor& errors() { return errors_; }

  /// More of what it reads, where it has an input.
  void write_input(std::string_view text) noexcept;
  /// Sends the signal to the whole process group. Where it has an input, the first signal that asks
  /// for its end closes that instead: `ssh` passes on the end of a file, and no signal.
  void signal(int signal) noexcept;
  /// The end of the process, if it has ended. Never waits.
  std::optional<Ending> ending() const;

 private:
  WorkerProcess() = default;

  pid_t pid_ = -1;
  FileDescriptor end_;
  FileDescriptor output_;
  FileDescriptor errors_;
  FileDescriptor input_;
};

}  // namespace tutti::command
