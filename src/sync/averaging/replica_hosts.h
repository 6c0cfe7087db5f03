#pragma once

// Where the copies of logical workers are right: on every host whose workers carry leaves of one,
// and update its copy. Others have a copy as it was when it was last averaged or brought to them.
//
// Values. Threads: any.

#include <cstddef>
#include <vector>

#include "comm/group_state.h"

namespace tutti {

class ReplicaHosts {
 public:
  /// All on one host.
  ReplicaHosts() = default;
  /// `carriers` are the workers of each logical worker (logical_workers.h).
  ReplicaHosts(const GroupState& group, const std::vector<std::vector<int>>& carriers);

  /// Whether some copy is not right on all hosts.
  bool differ() const { return !homes_.empty(); }
  /// Whether this host's copy of the logical worker is right.
  bool is_here(std::size_t logical) const { return homes_.empty() || here_[logical]; }
  /// Whether this is the one host that gives it to others.
  bool gives(std::size_t logical) const { return !homes_.empty() && gives_[logical]; }
  /// A worker of that host.
  int home(std::size_t logical) const { return homes_.empty() ? 0 : homes_[logical]; }

 private:
  std::vector<int> homes_;  ///< empty on one host
  std::vector<bool> here_;
  std::vector<bool> gives_;
};

}  // namespace tutti
