#pragma once

// Memory of which every host has a copy, where a group is on several: what members of one host
// write there is sent to the others. On one host nothing has to be done.
//
// Threads: one. Failure: that of collectives.

#include <cstddef>

#include "tutti/group.h"

namespace tutti {

/// Sends plain values that this member has written to its block of Group::allocate(), ahead of what
/// the group does next.
void send_to_hosts(const Group& group, const void* at, std::size_t bytes);

/// Gives the memory at `at`, in a block of Group::allocate_common(), the values that it has on the
/// host of rank 0. Collective; all of a host's members have the same memory there.
void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options = {});

}  // namespace tutti
