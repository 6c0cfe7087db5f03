#pragma once

// Ranks as threads of hosts that a test names, in a world that it can harm.

#include <memory>
#include <vector>

#include "support/thread_ranks.h"

namespace tutti::test {

/// Four ranks: as many on each host, one, unequally many, and not in the order of the hosts.
inline const std::vector<std::vector<RankSet>> kHosts = {
    {{0, 1}, {2, 3}}, {{0}, {1}, {2}, {3}}, {{0, 1, 2}, {3}}, {{0, 2}, {1, 3}}};

inline ThreadOptions on(const HostMap& hosts) {
  ThreadOptions options;
  options.hosts = hosts;
  options.world = std::make_shared<ThreadWorld>(hosts.size());
  return options;
}
inline ThreadOptions on(const std::vector<RankSet>& hosts) { return on(HostMap::of(hosts)); }

}  // namespace tutti::test
