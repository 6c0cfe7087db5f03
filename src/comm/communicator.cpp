#include "comm/communicator.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/local/group_lanes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Position of this worker among `ranks`.
int own_position(const JobState& job, const std::vector<int>& ranks, const std::string& name,
                 const GroupOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(
        fmt::format("group \"{}\" of ranks [{}]: {}", name, fmt::join(ranks, " "), why));
  };
  const Identity& self = job.identity();
  if (name.empty()) refuse("a group needs a name");
  if (ranks.empty()) refuse("no ranks are given");
  if (options.lanes < 1 || options.lanes > kMaxGroupLanes) {
    refuse(fmt::format("{} lanes; it has 1 to {}", options.lanes, kMaxGroupLanes));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= self.size) {
      refuse(fmt::format("rank {} is not in this job of {}", ranks[i], self.size));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      refuse("ranks must be ascending, each given once");
    }
  }
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), self.rank);
  if (found == ranks.end() || *found != self.rank) {
    refuse(fmt::format("this worker, rank {}, is not among them", self.rank));
  }
  return static_cast<int>(found - ranks.begin());
}

/// The host of each member, numbered in the order in which members are on them.
std::vector<int> hosts_of(const JobState& job, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  std::vector<int> of_members;
  for (const int rank : ranks) {
    const int host = job.hosts().host_of(rank);
    const auto found = std::ranges::find(hosts, host);
    of_members.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(host);
  }
  return of_members;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<JobState> job, std::vector<int> ranks, std::string name,
                           const GroupOptions& options, std::function<void()> check)
    : job_(std::move(job)),
      ranks_(std::move(ranks)),
      name_(std::move(name)),
      rank_(own_position(*job_, ranks_, name_, options)),
      members_(RankSet::of(ranks_)),
      collectives_(
          std::make_unique<GroupLanes>(*job_, LocalGroup{.name = name_,
                                                         .ranks = ranks_,
                                                         .rank = rank_,
                                                         .host_of = hosts_of(*job_, ranks_),
                                                         .lanes = options.lanes,
                                                         .check = std::move(check)})),
      layout_(collectives_->layout()) {}

Communicator::~Communicator() = default;

const std::shared_ptr<Communicator>& Communicator::first_of_hosts(
    const std::function<void()>& check) {
  if (first_of_hosts_ || !layout_.drives()) return first_of_hosts_;
  std::vector<int> firsts;
  for (int host = 0; host < hosts(); ++host) firsts.push_back(first_of(host));
  first_of_hosts_ = std::make_shared<Communicator>(
      job_, std::move(firsts), name_ + ", first of each host", kOneLane, [this, check] {
        collectives_->check();
        if (check) check();
      });
  return first_of_hosts_;
}

std::uint64_t Communicator::calls() const { return collectives_->started(); }

void Communicator::ask_also(PartnerCheck check) const { collectives_->ask_also(std::move(check)); }

}  // namespace tutti
