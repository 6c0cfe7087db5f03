#pragma once

// The built command `tutti` as a child of the test: what it prints, how it ends, all under a
// deadline.

#include <sys/types.h>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace tutti {

/// Generous, because the machine may be busy; a test that waits this long has failed.
inline constexpr std::chrono::seconds kTestDeadline{60};

struct CommandSetup {
  std::vector<std::string> environment = {};  ///< "NAME=value" in addition; "NAME" takes one away
  std::string input = {};                     ///< what its standard input holds
  bool terminal = false;                 ///< output and errors go to a pseudo-terminal, as `out`
  bool socket = false;                   ///< output goes to a socket that holds little
  std::vector<int> absent_calls = {};    ///< system calls (SYS_…) that there are not
  std::vector<std::string> before = {};  ///< a command that executes the command: "unshare", …
};

class RunningCommand {
 public:
  explicit RunningCommand(const std::vector<std::string>& arguments,
                          const CommandSetup& setup = {});
  ~RunningCommand();
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  /// Reads until `text` has been printed `times` times to out or err together; false at the
  /// deadline.
  bool wait_for(const std::string& text, int times = 1);
  /// The same for whole lines that hold "name=".
  bool wait_for_numbers(const std::string& name, int times = 1);
  void signal(int signal) const;
  pid_t pid() const { return pid_; }
  /// Nobody reads its standard output any more.
  void close_out() { out_.reset(); }
  /// Reads all and waits for the end. Exit status, or 128 + signal; -1 at the deadline. With
  /// `read_out` false, standard output is left unread.
  int finish(bool read_out = true);

  std::string out;
  std::string err;

 private:
  bool wait_until(const std::function<bool()>& seen);
  bool read_some(int timeout_ms, bool read_out);
  std::optional<int> status();

  pid_t pid_ = -1;
  FileDescriptor out_;
  FileDescriptor err_;
  FileDescriptor end_;
};

struct Finished {
  int status;
  std::string out;
  std::string err;
};
/// Runs the command to its end.
Finished run_command(const std::vector<std::string>& arguments, const CommandSetup& setup = {});
/// `tutti run options… sh -c script`
Finished run_script(std::vector<std::string> options, const std::string& script,
                    const CommandSetup& setup = {});

/// The process has ended or is a zombie. Watched from its construction on, so the number cannot be
/// reused unnoticed.
class WatchedProcess {
 public:
  explicit WatchedProcess(pid_t pid);
  bool exists() const { return static_cast<bool>(end_); }
  /// False when it still lives after `limit`; true of one that had ended before it was watched.
  bool ends(std::chrono::milliseconds limit) const;

 private:
  FileDescriptor end_;
};

/// Until `condition` holds; false at the deadline.
bool comes_true(const std::function<bool()>& condition);

std::vector<std::string> lines_of(const std::string& text);
/// Numbers after each "name=" in the text.
std::vector<int> numbers_after(const std::string& text, const std::string& name);

/// Processes that have it as their parent, ended ones among them.
std::vector<pid_t> children_of(pid_t parent);

/// A folder of the test's own, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};
void create_file(const std::string& path);
std::string read_file(const std::string& path);

}  // namespace tutti
