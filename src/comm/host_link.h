#pragma once

// A link between the hosts of a group.
//
// Threads: one. Failure: that of collectives, and of the engine.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/link/link.h"
#include "tutti/group.h"

namespace tutti {

/// The participants are the first members of each host, which have the link; the others get null.
/// Collective among the first members. `what` names it in errors.
std::unique_ptr<Link> make_host_link(const Group& group, const std::string& what, int lanes,
                                     std::optional<std::chrono::milliseconds> deadline = {});

/// Whether all hosts of the group make links by the same engine. Collective. The answer, and why
/// there is none, is logged once per job.
bool have_host_links(const Group& group);

}  // namespace tutti
