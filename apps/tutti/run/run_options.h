#pragma once

// What `tutti run` was asked for: options up to the program's name; everything after belongs to the
// program.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tutti::command {

struct RunOptions {
  int workers = 0;
  int threads = 1;
  int restarts = 0;
  bool survivors = false;
  std::optional<int> min_workers;  ///< with `survivors`; by default 1
  std::string bind = "none";
  std::string cpu;                 ///< a level of instruction sets; empty: as inherited
  std::optional<double> deadline;  ///< seconds; by default that of the environment
  std::string log_folder;
  std::string profile;
  std::string hosts;      ///< "a:2,b:2"; empty: this machine alone
  std::string ssh;        ///< the command that runs another on a host
  int port = 0;           ///< of the hub; 0: any
  std::string interface;  ///< to which sockets between hosts are bound; empty: the system's choice
  std::string link;       ///< how gradients travel between hosts; empty: as inherited
  std::optional<int> lanes;                 ///< connections for each kind of message; as inherited
  std::vector<std::string> variables = {};  ///< NAME or NAME=value, for the workers of all hosts
  std::optional<int> host_index = {};       ///< internal: this is the launcher of that host
  std::string host_run = {};                ///< internal: identity of the run
  int host_attempt = 0;                     ///< internal: restarts so far
  std::vector<std::string> program;         ///< name and arguments
  bool threads_given = false;               ///< by --threads
  bool program_marked = false;              ///< a "--" stands before the program
  double join_notice = 60;  ///< internal: seconds until it is told that no worker has joined
};

/// Adds the options of `tutti run` to `app`; `options` must outlive it. The program is not among
/// them: it is cut off before, by program_start.
void add_run_options(CLI::App& app, RunOptions& options);

/// Index in `arguments` (those after "run") of the first that is neither an option known to `app`
/// nor the value of one; a "--" counts as the start. Throws Refusal for an option
/// that is not known to it.
std::size_t program_start(const CLI::App& app, const std::vector<std::string>& arguments);

/// The option that a program's argument gives, where it may be meant for `tutti run`: --threads.
/// Empty: none, or it is surely the program's own.
std::string misplaced_option(const RunOptions& options);

/// `, did you mean "--threads"?` for a name that is much like one of `known`, else empty.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known);

/// Throws Refusal with the usage status for values that make no sense.
void check(const RunOptions& options);

/// The number of workers that must not have failed for the run to continue: all without
/// --survivors.
int needed_workers(const RunOptions& options);

}  // namespace tutti::command
