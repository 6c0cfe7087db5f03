#include "job/hosts/host_map.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "tutti/error.h"
#include "tutti/limits.h"

namespace tutti {

static_assert(std::is_trivially_copyable_v<RankSet>);

HostMap HostMap::one(int size) {
  HostMap map;
  map.ranks_ = {RankSet::below(size)};
  map.host_of_.assign(static_cast<std::size_t>(size), 0);
  return map;
}

HostMap HostMap::of(std::span<const RankSet> ranks) {
  HostMap map;
  RankSet all;
  int size = 0;
  for (std::size_t host = 0; host < ranks.size(); ++host) {
    const RankSet& some = ranks[host];
    if (some.empty()) throw InvalidArgument("a host without a worker");
    if (some.size() > kMaxWorkersPerHost) {
      throw InvalidArgument(fmt::format("host {} has {} workers: must be 1 to {}", host,
                                        some.size(), kMaxWorkersPerHost));
    }
    if (const RankSet twice = all & some; !twice.empty()) {
      throw InvalidArgument(fmt::format("{} on two hosts", ranks_text(twice, "is", "are")));
    }
    all |= some;
    size += some.size();
  }
  if (all != RankSet::below(size)) {
    throw InvalidArgument(
        fmt::format("hosts of {} workers lack {}", size, ranks_text(RankSet::below(size) - all)));
  }
  if (size == 0 || !ranks.front().contains(0)) {
    throw InvalidArgument("rank 0 is not on the first host");
  }
  map.ranks_.assign(ranks.begin(), ranks.end());
  map.host_of_.resize(static_cast<std::size_t>(size));
  for (int host = 0; host < map.hosts(); ++host) {
    for (const int rank : map.ranks_of(host).ranks()) {
      map.host_of_[static_cast<std::size_t>(rank)] = host;
    }
  }
  return map;
}

std::string HostMap::bytes() const {
  return {reinterpret_cast<const char*>(ranks_.data()), ranks_.size() * sizeof(RankSet)};
}

HostMap HostMap::read(const std::string& bytes) {
  std::vector<RankSet> ranks(bytes.size() / sizeof(RankSet));
  std::memcpy(ranks.data(), bytes.data(), ranks.size() * sizeof(RankSet));
  return of(ranks);
}

bool HostMap::spans_hosts(const RankSet& ranks) const {
  return !ranks.empty() && !(ranks - neighbours(ranks.first())).empty();
}

}  // namespace tutti
