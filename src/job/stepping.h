#pragma once

// Which thread of the process is in a step of a Trainer. Steps seed torch's generator, of which a
// process has one: what a second thread drew or seeded meanwhile would change what the first draws.
//
// Threads: any. Nothing is held while a step runs but a mark.

#include <string>
#include <utility>

#include "job/job_state.h"

namespace tutti {

/// The calling thread is in a step while it lives, unless another thread is: then elsewhere() tells
/// whose step that is, and this object is no mark. A thread may come again
/// inside of its own step.
class Stepping {
 public:
  /// `who`: "Trainer \"model\"".
  Stepping(JobState& job, std::string who)
      : job_(&job), elsewhere_(job.threads().enter_step(std::move(who))) {}
  ~Stepping() {
    if (elsewhere_.empty()) job_->threads().leave_step();
  }
  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;

  const std::string& elsewhere() const { return elsewhere_; }

 private:
  JobState* job_;
  std::string elsewhere_;
};

}  // namespace tutti
