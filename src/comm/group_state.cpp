#include "comm/group_state.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/local/local_collectives.h"
#include "job/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Position of this worker among `ranks`.
int own_position(const JobState& job, const std::vector<int>& ranks, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(
        fmt::format("group \"{}\" of ranks [{}]: {}", name, fmt::join(ranks, " "), why));
  };
  const Identity& self = job.identity();
  if (name.empty()) refuse("a group needs a name");
  if (ranks.empty()) refuse("no ranks are given");
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

}  // namespace

GroupState::GroupState(std::shared_ptr<JobState> job, std::vector<int> ranks, std::string name)
    : job_(std::move(job)),
      ranks_(std::move(ranks)),
      name_(std::move(name)),
      rank_(own_position(*job_, ranks_, name_)),
      members_(RankSet::of(ranks_)),
      collectives_(std::make_unique<LocalCollectives>(
          *job_, LocalGroup{.name = name_, .ranks = ranks_, .rank = rank_})) {}

GroupState::~GroupState() = default;

void GroupState::ask_also(PartnerCheck check) const { collectives_->ask_also(std::move(check)); }

}  // namespace tutti
