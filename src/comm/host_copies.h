#pragma once

// Memory of which every host has a copy, where a group is on several: what members of one host
// write there is sent to the others over a link (host_link.h). On one host nothing has to be done.
//
// Threads: one. Failure: that of collectives, and of the link.

#include <cstddef>
#include <span>

#include "comm/posted_pieces.h"
#include "tutti/group.h"

namespace tutti {

/// Gives each piece, on all hosts, the values that it has on its member's. Collective, alike on
/// all; all of a host's members have the same memory there. Nothing is overwritten before all have
/// come, and all have everything when it returns.
void copy_to_hosts(const Group& group, std::span<const HostPiece> pieces,
                   const CollectiveOptions& options = {});
/// The same for one piece that is right on the host of rank 0.
void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options = {});

}  // namespace tutti
