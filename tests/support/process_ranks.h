#pragma once

// Ranks that are processes, forked from this one and served by a Broker: what a launcher does,
// without one. They are killed when the time is up, and when this process ends.
//
// Threads: to be called while this process has no other threads.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "job/rendezvous/broker.h"
#include "support/thread_hosts.h"
#include "tutti/job.h"

namespace tutti::test {

struct ProcessOptions {
  JobOptions job = {.join_deadline = std::chrono::seconds(30),
                    .deadline = std::chrono::seconds(50)};
  int threads = 1;
  /// As many as asked_hosts() if absent.
  std::optional<HostMap> hosts = {};
  std::chrono::milliseconds limit = std::chrono::seconds(60);
};

/// How one rank ended.
struct RankEnd {
  int status = -1;       ///< exit status; -1 when a signal ended it
  int signal = 0;        ///< which ended it; 0 when it exited
  bool overdue = false;  ///< it was still running when the time was up
  std::string text;      ///< what() of the exception that left its function
  bool good() const { return status == 0; }
};

struct ProcessOutcome {
  std::vector<RankEnd> ranks;
  std::vector<Blame> blames;
  bool all_good() const;
  /// One line per rank, for the message of an assertion.
  std::string describe() const;
};

/// A child exits with 0 when `body` returns and no expectation of GoogleTest failed in it, and with
/// 1 otherwise.
ProcessOutcome run_process_ranks(int size, const std::function<void(Job)>& body,
                                 const ProcessOptions& options = {});

/// The same below a Job: `body` gets its rank and its end of the broker's socket, and joins itself.
ProcessOutcome run_processes(int size, const std::function<void(int, FileDescriptor)>& body,
                             std::chrono::milliseconds limit = std::chrono::seconds(60));
/// The same on several hosts.
ProcessOutcome run_processes(const HostMap& hosts,
                             const std::function<void(int, FileDescriptor)>& body,
                             std::chrono::milliseconds limit);

}  // namespace tutti::test
