#pragma once

// Which members of a group are on which host, and what each host can fold by itself.
//
// Plain data.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fold_program.h"

namespace tutti {

/// The values of all members, cut into groups of neighbours of the tree that are on one host.
struct HostSubtrees {
  struct Subtree {
    int host = 0;
    int begin = 0;  ///< members [begin, end)
    int end = 0;
    FoldProgram program;
    bool is_leaf() const { return end - begin == 1; }
  };
  std::vector<Subtree> all;    ///< ascending
  std::vector<Block> present;  ///< each as a leaf of the tree, to fold what they give
  FoldProgram program;         ///< the same where they are few enough
};

struct HostLayout {
  /// Of the member `rank` of a group whose members are on these hosts, numbered from 0.
  static HostLayout of(std::vector<int> host_of, int rank);

  std::vector<int> host_of;  ///< by member
  int hosts;
  int here;
  std::vector<int> team;      ///< the members of this host, ascending
  int team_rank;              ///< this member's place among them
  std::vector<int> first_of;  ///< by host: its first member
  HostSubtrees subtrees;      ///< as large as they can be
  HostSubtrees leaves;        ///< of one member each

  bool spans_hosts() const { return hosts > 1; }
  bool is_here(int member) const { return host_of[static_cast<std::size_t>(member)] == here; }
  /// The first member of a host drives what goes to the others.
  bool drives() const { return team_rank == 0; }
};

}  // namespace tutti
