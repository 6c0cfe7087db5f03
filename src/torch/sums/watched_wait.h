#pragma once

// A wait for something that no worker publishes: an engine, or a device. It polls, and looks after
// the workers meanwhile, of whom one that has ended will never do its part.
//
// Threads: one. Failure: PeerLost, Timeout; what `ready` throws.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "tutti/group.h"

namespace tutti {

/// Returns when ready() is true. `what` follows "has not reached" in errors. Absent, the deadline
/// is the job's.
void await_watched(const Group& group, const std::function<bool()>& ready,
                   const std::function<std::string()>& what,
                   std::optional<std::chrono::milliseconds> deadline = {});

}  // namespace tutti
