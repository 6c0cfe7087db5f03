#pragma once

// Everything about the workers of `tutti run` that is settled before the first starts, once for all
// attempts.

#include <string>
#include <vector>

#include "apps/tutti/run/run_options.h"
#include "apps/tutti/run/worker_process.h"
#include "base/cpu_level.h"

namespace tutti::command {

struct RunPlan {
  RunOptions options;
  std::string path;  ///< the program's file
  std::string run;   ///< identity, for TUTTI_RUN
  std::vector<std::string> inherited;
  std::vector<std::vector<unsigned long>> processors;  ///< per rank; empty: anywhere
  std::string timeline;                                ///< absolute path; empty: none
  LibrarySettings libraries;                           ///< for --cpu
  rlimit descriptors{};                                ///< on open files, as it was: the workers'
  int first_rank = 0;                                  ///< of this host
  int size = 0;                                        ///< workers of all hosts
  std::string hub;                 ///< where hosts meet, for TUTTI_HUB; set once that is known
  std::string hosts;               ///< for TUTTI_HOSTS
  std::vector<std::string> hints;  ///< lines to be shown
};

/// Also creates the folder of logs, removes an earlier run's timeline, and lets this
/// process open as many files as the hard limit allows. Throws Refusal.
RunPlan make_plan(const RunOptions& options);

/// A line that tells of an option behind the program's name; empty: there is none.
std::string misplaced_hint(const RunOptions& options);

/// The options that start worker `index` of this host in the attempt after `restart` others, with
/// its end of the rendezvous.
StartOptions start_options(const RunPlan& plan, std::size_t index, int restart, int rendezvous);

/// Name of a worker's log; empty: none.
std::string log_file(const RunPlan& plan, int rank);

}  // namespace tutti::command
