#pragma once

// A rendezvous under the rules of all other waits: stalls are noticed, busy workers are excused.
//
// Threads: any. Failure: as Rendezvous::all_gather; deadlines count as in wait.h. A worker that has
// ended is lost at once, also where others hold its socket; who is lost is blamed, unless `check`
// knows why it has ended.

#include <functional>
#include <string>
#include <vector>

#include "job/job_state.h"

namespace tutti {

/// Rendezvous::all_gather among `ranks`; `tag` names it in notices and errors. `check`, where
/// given, is asked periodically: it throws where somebody will never come for a reason that the
/// rendezvous knows nothing of (a group that was ended). Then gather() throws that, and so it does
/// for those whose wait that ends.
std::vector<Parcel> gather(JobState& job, const std::string& tag, const std::vector<int>& ranks,
                           Parcel mine, const std::function<void()>& check = {});

}  // namespace tutti
