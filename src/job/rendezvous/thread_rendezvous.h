#pragma once

// The rendezvous of ranks that are threads of one process, and of a job of one.
//
// Threads: any; each rank's Rendezvous is used by its own threads.

#include <memory>
#include <vector>

#include "job/rendezvous/blame.h"
#include "job/wire/rendezvous.h"

namespace tutti {

class ThreadRendezvous {
 public:
  ThreadRendezvous();
  /// The given rank's side. When it is destroyed, the rank counts as ended for those that still
  /// wait for it here.
  std::unique_ptr<Rendezvous> rendezvous(int rank) const;
  /// The blames so far, in order of arrival.
  std::vector<Blame> blames() const;

 private:
  struct State;
  class Side;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
