#pragma once

// The request of a signal that a job end: SIGTERM and SIGUSR1, as Slurm, Kubernetes and `tutti run`
// send them. It is noted, and asked for when that is good for the program; another one, later than
// kSameEndRequest, ends the process at once, but for a save that is under way.
//
// Threads: any. Failure: as said.

#include <chrono>

namespace tutti {

class JobState;

/// Time after a request within which another signal is the same one: who ends a run may send it to
/// each process, and the launcher passes it on.
inline constexpr std::chrono::milliseconds kSameEndRequest = std::chrono::seconds(1);

/// From now on this process notes such signals, and the launcher gives it the time to save. They
/// have the default effect before.
void note_end_requests(JobState& job);
/// Whether one has come.
bool end_was_requested() noexcept;

/// The right to save and to end the job when that is asked for: one lives at a time in a worker,
/// since what others have would be lost. InvalidArgument where there is another.
class EndClaim {
 public:
  explicit EndClaim(JobState& job);
  ~EndClaim();
  EndClaim(const EndClaim&) = delete;
  EndClaim& operator=(const EndClaim&) = delete;

 private:
  JobState* job_;
};

/// While one lives, a second request waits: it takes effect when the last one ends.
class EndPostponed {
 public:
  EndPostponed() noexcept;
  ~EndPostponed();
  EndPostponed(const EndPostponed&) = delete;
  EndPostponed& operator=(const EndPostponed&) = delete;
};

/// Ends this process with kResumeStatus (tutti/job.h), when all workers of the job have what they
/// wait for: what it has written by C's and C++'s streams is flushed, and no destructor runs. A
/// worker that carries others' connections ends after them.
[[noreturn]] void end_to_resume(JobState& job);

}  // namespace tutti
