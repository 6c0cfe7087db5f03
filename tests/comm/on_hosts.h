#pragma once

// Ranks as threads of hosts that a test names, in a world that it can harm.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "job/job_state.h"
#include "support/thread_ranks.h"
#include "tutti/group.h"

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

/// The bytes that `call`, made by all of 4 ranks, moves over links from each host, and the most
/// that a rank sends by the hub.
struct BytesMoved {
  std::vector<std::uint64_t> from;
  std::uint64_t by_hub = 0;
};
inline BytesMoved bytes_moved(const std::vector<RankSet>& hosts,
                              const std::function<void(const Group&)>& call) {
  auto options = on(hosts);
  BytesMoved result;
  std::vector<std::uint64_t> by_hub(static_cast<std::size_t>(options.hosts->size()));
  run_thread_ranks(
      options.hosts->size(),
      [&](const Job& job) {
        const Group group(job);
        call(group);  // makes the link
        group.barrier();
        std::vector<std::uint64_t> before;
        auto& world = *options.world->hosts();
        const auto count = [&] {
          std::vector<std::uint64_t> bytes;
          for (std::size_t host = 0; host < hosts.size(); ++host) {
            bytes.push_back(world.link_bytes_from(static_cast<int>(host)));
          }
          return bytes;
        };
        if (job.rank() == 0) before = count();
        const auto hub_before = job.state()->bytes_to_hosts();
        group.barrier();
        call(group);
        group.barrier();
        by_hub[static_cast<std::size_t>(job.rank())] = job.state()->bytes_to_hosts() - hub_before;
        if (job.rank() == 0) {
          result.from = count();
          for (std::size_t host = 0; host < hosts.size(); ++host) result.from[host] -= before[host];
        }
        group.barrier();
      },
      options);
  result.by_hub = *std::ranges::max_element(by_hub);
  return result;
}

}  // namespace tutti::test
