#pragma once

// A rendezvous under the rules of all other waits: stalls are noticed, busy workers are excused.
//
// Threads: any. Failure: as Rendezvous::all_gather; deadlines count as in wait.h. A worker that has
// ended is lost at once, also where others hold its socket; who is lost is blamed.

#include <string>
#include <vector>

#include "job/job_state.h"

namespace tutti {

/// Rendezvous::all_gather among `ranks`; `tag` names it in notices and errors.
std::vector<Parcel> gather(JobState& job, const std::string& tag, const std::vector<int>& ranks,
                           Parcel mine);

}  // namespace tutti
