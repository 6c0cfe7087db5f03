#pragma once

// The launcher of one host among several: `tutti run --hosts … --host-index k`, which another one
// has started. That one writes to its standard input: the token and variables (host_environment.h),
// and to all but the hub where the hub listens. When this input ends, so does the host: the other
// launcher has ended, or asks for it.
//
// Threads: one inside, which reads the input. Failure: the errors of the join.

#include <optional>
#include <string>

#include "apps/tutti/run/run_plan.h"
#include "apps/tutti/run/signal_inbox.h"
#include "job/hosts/host_connections.h"

namespace tutti::command {

struct JoinedHosts {
  std::optional<ConnectedHosts> hosts;  ///< empty: the join was interrupted
  int interrupted_by = 0;
  std::string hub = {};  ///< "address:port", where the hosts have met
};

JoinedHosts join_hosts(const RunPlan& plan, const std::string& token, SignalInbox& signals);

}  // namespace tutti::command
