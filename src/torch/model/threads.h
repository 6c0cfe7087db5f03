#pragma once

// Torch's threads within one worker. Its own loops always use as many as it was told; MKL, which it
// calls for matrix products and some functions of elements, takes fewer of them as it sees fit,
// which changes where arrays are cut, and with it roundings, from run to run. Being told the number
// ends that.
//
// Threads: those of the caller.

#include <ATen/Parallel.h>

#include "comm/group_state.h"

namespace tutti {

/// Pins the number of threads, so that later results depend on it alone: the one that torch has, or
/// the job's where no launcher has told torch.
inline void pin_threads(const GroupState& group) {
  const auto& identity = group.job().identity();
  at::set_num_threads(identity.sets_threads ? identity.threads : at::get_num_threads());
}

/// One thread while this lives.
class SingleThread {
 public:
  SingleThread() { at::set_num_threads(1); }
  ~SingleThread() { at::set_num_threads(before_); }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

}  // namespace tutti
