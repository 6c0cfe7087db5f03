#pragma once

// Which members of a group are on which host, and what each host can fold by itself.
//
// Plain data.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fold_program.h"

namespace tutti {

/// Nodes [begin, end): neighbours of the tree that are on one host, and not part of a larger
/// subtree of that host.
struct HostSubtree {
  int host = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_leaf() const { return end - begin == 1; }
};

/// The subtrees of the tree over `leaves` leaves, ascending; together they have all nodes, which
/// are ascending too. `hosts[n]` is the host of node n.
std::vector<HostSubtree> host_subtrees(std::span<const Block> nodes, std::span<const int> hosts,
                                       std::int64_t leaves);

/// The values of all members, cut into subtrees of hosts.
struct HostSubtrees {
  std::vector<HostSubtree> all;
  std::vector<FoldProgram> within;  ///< of each
  std::vector<Block> present;       ///< each as a leaf of the tree, to fold what they give
  FoldProgram program;              ///< the same where they are few enough
};

/// The members of a group on this host, who share the work that every host does for itself.
struct Team {
  std::vector<int> members;  ///< ranks in the group, ascending
  int rank = 0;              ///< this worker's place among them
  int size() const { return static_cast<int>(members.size()); }
  int member(int rank) const { return members[static_cast<std::size_t>(rank)]; }
  /// Returns the place of whoever does here what is that member's to do: of the member itself or,
  /// where it is on another host, of another one.
  int deputy_of(int member) const;
};

struct HostLayout {
  /// Returns the layout as member `rank` sees it. `host_of` has each member's host, numbered from
  /// 0.
  static HostLayout of(std::vector<int> host_of, int rank);

  std::vector<int> host_of;  ///< by member
  int hosts;
  int here;
  Team team;
  std::vector<int> first_of;  ///< by host: its first member
  HostSubtrees subtrees;      ///< as large as they can be
  HostSubtrees leaves;        ///< of one member each

  bool spans_hosts() const { return hosts > 1; }
  /// The first member of a host drives what goes to the others.
  bool drives() const { return team.rank == 0; }
};

}  // namespace tutti
