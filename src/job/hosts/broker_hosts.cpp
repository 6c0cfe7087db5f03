#include "job/hosts/broker_hosts.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "job/wire/board.h"
#include "job/wire/frame.h"

namespace tutti {

BrokerHosts broker_hosts(ConnectedHosts joined, int rank) {
  std::vector<RankSet> ranks;
  for (const auto& host : joined.hosts) ranks.push_back(RankSet::of(host.ranks));
  BrokerHosts hosts{.map = HostMap::of(ranks), .run = std::move(joined.run)};
  hosts.here = hosts.map.host_of(rank);
  for (auto& host : joined.hosts) hosts.connections.push_back(std::move(host.socket));
  return hosts;
}

std::string facts_of_hosts() {
  return fmt::format("frames {:x}, board {}", FrameHeader::kMagic, sizeof(Board));
}

}  // namespace tutti
