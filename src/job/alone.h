#pragma once

// Parts of a program that each worker runs by itself: shards of a Trainer, of which the others
// compute other ones, or none. A collective in there would wait for workers that never come to it.
//
// Threads: one.

#include <string>
#include <string_view>
#include <utility>

#include "job/job_state.h"

namespace tutti {

/// Collectives of the job's groups, and making groups, are InvalidArgument while it lives. `where`
/// is in the text: "shard 3 of Trainer \"model\"".
class Alone {
 public:
  Alone(JobState& job, std::string where) : job_(job), before_(job.alone_in()) {
    job_.threads().set_alone_in(std::move(where));
  }
  ~Alone() { job_.threads().set_alone_in(std::move(before_)); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  JobState& job_;
  std::string before_;
};

/// Lifts that, for calls in which all workers are known to take part.
class Together {
 public:
  explicit Together(JobState& job) : alone_(job, "") {}

 private:
  Alone alone_;
};

/// Throws the InvalidArgument while an Alone lives. `call`, which begins the text, needs all
/// members of the group.
void require_together(const JobState& job, std::string_view call, std::string_view group);
/// The same of what is no group's: `save()`.
void require_together(const JobState& job, std::string_view call);
/// The same of a step of the DataParallel or Trainer of that name.
void require_step_together(const JobState& job, std::string_view name);

}  // namespace tutti
