#include "sync/averaging/replica_hosts.h"

#include <algorithm>

namespace tutti {

ReplicaHosts::ReplicaHosts(const GroupState& group, const std::vector<std::vector<int>>& carriers) {
  if (!group.spans_hosts()) return;
  const auto is_mine = [&](int worker) {
    return group.host_of(worker) == group.host_of(group.rank());
  };
  for (const auto& workers : carriers) {
    homes_.push_back(workers.front());
    here_.push_back(std::ranges::any_of(workers, is_mine));
    gives_.push_back(is_mine(workers.front()));
  }
}

}  // namespace tutti
