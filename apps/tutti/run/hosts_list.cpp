#include "apps/tutti/run/hosts_list.h"

#include <fmt/format.h>
#include <numeric>
#include <sstream>

#include "apps/tutti/text/refusal.h"
#include "base/number.h"
#include "tutti/job.h"

namespace tutti::command {

std::vector<int> HostEntry::ranks() const {
  std::vector<int> ranks(static_cast<std::size_t>(workers));
  std::iota(ranks.begin(), ranks.end(), first_rank);
  return ranks;
}

std::vector<HostEntry> parse_hosts(const std::string& text) {
  std::vector<HostEntry> hosts;
  std::istringstream entries(text);
  int ranks = 0;
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto colon = entry.rfind(':');
    HostEntry host;
    host.name = entry.substr(0, std::min(colon, entry.size()));
    host.workers =
        parse_number<int>(entry.substr(std::min(colon, entry.size() - 1) + 1)).value_or(0);
    if (host.name.size() > 2 && host.name.front() == '[' && host.name.back() == ']')
      host.name = host.name.substr(1, host.name.size() - 2);
    // A name that begins like an option would be one of ssh's.
    if (host.name.empty() || host.name.front() == '-' || host.workers < 1 ||
        host.workers > kMaxWorkersPerHost)
      throw Refusal(kUsageStatus, fmt::format("--hosts: \"{}\" must be the name of a host, a colon "
                                              "and a number of workers from 1 to {}",
                                              entry, kMaxWorkersPerHost));
    host.first_rank = ranks;
    ranks += host.workers;
    hosts.push_back(std::move(host));
  }
  if (ranks > kMaxWorkers)
    throw Refusal(kUsageStatus,
                  fmt::format("--hosts: {} workers in all: must be 1 to {}", ranks, kMaxWorkers));
  return hosts;
}

int workers_of(const std::vector<HostEntry>& hosts) {
  return hosts.back().first_rank + hosts.back().workers;
}

}  // namespace tutti::command
