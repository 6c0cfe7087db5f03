#pragma once

// Who am I among the workers? A Job is joined once per process; groups, DataParallel and everything
// that waits for other workers are made from it.
//
// A child that this process makes by fork() has a copy of the Job and is no part of it: see
// docs/errors.md.
//
// Threads: a Job is a handle that may be copied; its functions may be called from any thread, but
// everything made from it is used by one thread at a time.
// Failure: join() throws Timeout when workers are missing at the deadline, PeerLost when one died
// before joining, InvalidArgument for an environment that makes no sense, Unsupported where
// TUTTI_LINK asks for MPI and a worker lacks it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/limits.h"

namespace tutti {

inline constexpr std::chrono::milliseconds kJoinDeadline = std::chrono::seconds(60);
inline constexpr std::chrono::milliseconds kTrainingDeadline = std::chrono::minutes(10);
/// A wait that lasts this long is reported in the log, again each time it doubles; by the lowest
/// rank of those that wait for the same.
inline constexpr std::chrono::milliseconds kStallNotice = std::chrono::seconds(10);

/// The exit status of a worker that has saved what it has, as a signal asked for, and is to be
/// started again: EX_TEMPFAIL of sysexits.h. `tutti run` passes it on.
inline constexpr int kResumeStatus = 75;

struct JobOptions {
  /// How long join() waits for all workers. Must be positive.
  std::chrono::milliseconds join_deadline = kJoinDeadline;
  /// How long any later wait may last unless the call says otherwise. TUTTI_DEADLINE, where set,
  /// takes the place of the default. Must be positive.
  std::chrono::milliseconds deadline = kTrainingDeadline;
  /// First notice of a stall. Must be positive.
  std::chrono::milliseconds stall_notice = kStallNotice;
};

class JobState;

/// Says for as long as it lives that this worker is doing something long outside any collective.
class Busy {
 public:
  Busy(std::shared_ptr<JobState> job, std::string what, std::chrono::milliseconds at_most);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::shared_ptr<JobState> job_;
  std::uint64_t number_ = 0;
};

class Job {
 public:
  /// Joins the workers that `tutti run`, torchrun, mpirun, mpiexec or srun started together with
  /// this process, on this host or on several. Without a launcher it is a job of one, and says so
  /// in the log. Throws InvalidArgument when another launcher than `tutti run` has started workers
  /// on several hosts and TUTTI_HUB or TUTTI_TOKEN is not set, unless it gives MASTER_ADDR and
  /// MASTER_PORT, as torchrun does. How they differ: docs/clusters.md.
  static Job join(const JobOptions& options = {});

  /// For tests and embedding: a job over a given state.
  explicit Job(std::shared_ptr<JobState> state) : state_(std::move(state)) {}

  /// This worker, 0 … size()-1.
  int rank() const;
  /// Number of workers.
  int size() const;
  /// Intra-op threads each worker should use (`tutti run --threads`; under another launcher
  /// TUTTI_THREADS or OMP_NUM_THREADS; 1 unless given).
  int threads() const;
  /// How often the launcher has started all workers again (`tutti run --restarts`, torchrun
  /// --max-restarts); 0 in the first attempt and without a launcher. The same on all workers.
  int restarts() const;
  /// Identity of this run, the same on all workers and in all its attempts, and not that of any
  /// other run: what a checkpoint or a log can be told by. Hexadecimal digits.
  const std::string& run_id() const;

  /// Whether a signal has asked one of the workers to end, SIGTERM or SIGUSR1, as batch systems and
  /// `tutti run` send them: the same answer on all workers, which all ask, for instance after each
  /// step. From the first call on such a signal does not end the process; another one, a second
  /// later, does. Then save, and return kResumeStatus from main(). Collective.
  bool should_end() const;

  /// While the returned object lives, and at most for `at_most`, other workers that wait for this
  /// one neither complain nor count the time against their deadline. `at_most` must be positive.
  [[nodiscard]] Busy busy(std::string what, std::chrono::milliseconds at_most) const;

  /// Workers not known to have ended or left, in rank order. On a host that is cut off from the
  /// others of its job, those of that host: a group of them is PeerLost.
  std::vector<int> alive() const;

  const std::shared_ptr<JobState>& state() const { return state_; }

 private:
  std::shared_ptr<JobState> state_;
};

}  // namespace tutti
