#pragma once

// The nodes of a step where workers are on several hosts: those that one host can add up by itself.
//
// Pure functions.

#include <cstdint>
#include <span>
#include <vector>

#include "sync/nodes/held_nodes.h"

namespace tutti {

/// A subtree whose nodes are all on one host, and which is not part of a larger one.
struct HostBlock {
  int host = 0;
  NodeRange nodes = {};
  friend bool operator==(const HostBlock& a, const HostBlock& b) {
    return a.host == b.host && a.nodes.begin == b.nodes.begin && a.nodes.end == b.nodes.end;
  }
};

/// The subtrees of the tree over `leaves` leaves, ascending; together they have all nodes, which
/// are ascending too. `hosts[n]` is the host of node n.
std::vector<HostBlock> host_blocks(std::span<const HeldNode> nodes, std::span<const int> hosts,
                                   std::int64_t leaves);

}  // namespace tutti
