#pragma once

// Which workers of a job share memory: those of one host.
//
// Threads: values. Failure: InvalidArgument for a map that makes no sense.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "job/wire/rank_set.h"

namespace tutti {

class HostMap {
 public:
  /// All workers on one host.
  static HostMap one(int size);
  /// `ranks[h]` are the job ranks on host h: every rank below their number once, rank 0 on host 0,
  /// at most kMaxWorkersPerHost on each.
  static HostMap of(std::span<const RankSet> ranks);

  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  const RankSet& ranks_of(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  /// The workers that share memory with `rank`, itself among them.
  const RankSet& neighbours(int rank) const { return ranks_of(host_of(rank)); }
  /// As bytes, and back.
  std::string bytes() const;
  static HostMap read(const std::string& bytes);
  /// Whether these ranks are on more than one host.
  bool spans_hosts(const RankSet& ranks) const;

 private:
  std::vector<RankSet> ranks_;
  std::vector<int> host_of_;
};

}  // namespace tutti
