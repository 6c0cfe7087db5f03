#pragma once

// `tutti run --hosts`: starts a launcher on each host, by a remote shell, and shows what they
// write. Each starts the workers of its host, and ends them when its input ends.
//
// Threads: one. Failure: Refusal when a launcher cannot be started.

#include "apps/tutti/run/keeper.h"
#include "apps/tutti/run/run_options.h"
#include "apps/tutti/run/signal_inbox.h"
#include "apps/tutti/text/output.h"

namespace tutti::command {

/// Returns when all hosts have ended, and what they wrote is printed.
RunEnd run_hosts(const RunOptions& options, Output& output, SignalInbox& signals);

}  // namespace tutti::command
