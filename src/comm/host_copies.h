#pragma once

// Memory of which every host has a copy, where a group is on several: what members of one host
// write there is sent to the others. On one host nothing has to be done.
//
// Threads: one. Failure: that of collectives.

#include <cstddef>
#include <span>

#include "tutti/group.h"

namespace tutti {

/// Sends plain values that this member has written to its block of Group::allocate(), ahead of what
/// the group does next.
void send_to_hosts(const Group& group, const void* at, std::size_t bytes);

/// Memory in a block of Group::allocate_common(), which is right on the host of one member.
struct HostPiece {
  int member = 0;  ///< rank in the group
  std::byte* at = nullptr;
  std::size_t bytes = 0;
};
/// Gives each piece, on all hosts, the values that it has on its member's. Collective, alike on
/// all; all of a host's members have the same memory there.
void copy_to_hosts(const Group& group, std::span<const HostPiece> pieces,
                   const CollectiveOptions& options = {});
/// The same for one piece that is right on the host of rank 0.
void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options = {});

}  // namespace tutti
