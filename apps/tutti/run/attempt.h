#pragma once

// One attempt of `tutti run`: starts all workers with a rendezvous of their own, shows what they
// write, ends them together, and reports. When it returns, no process, descriptor or memory of it
// is left that could affect a later attempt.
//
// Threads: from the main thread, while it is the only one. Failure: Refusal or Error when workers
// cannot be started; those that were are ended.

#include <vector>

#include "apps/tutti/run/run_plan.h"
#include "apps/tutti/run/signal_inbox.h"
#include "apps/tutti/run/worker_output.h"
#include "apps/tutti/text/output.h"
#include "job/hosts/host_connections.h"

namespace tutti::command {

/// Text that precedes a restart is left in `output`: a reader that pauses does not delay the
/// restart, unless `output` is full.
struct AttemptEnd {
  int status = 0;            ///< of `tutti run`, unless all workers are started again
  int interrupted_by = 0;    ///< the signal that asked for the end; 0: none did
  bool start_again = false;  ///< a worker failed, no signal asked for an end, a restart is left
};

/// `hosts` has none where the job is on one. `restart` counts from 0, the first attempt.
/// `outputs[i]` is where the lines of this host's i-th worker go.
AttemptEnd run_attempt(const RunPlan& plan, ConnectedHosts hosts, int restart,
                       std::vector<WorkerOutput>& outputs, Output& output, SignalInbox& signals);

}  // namespace tutti::command
