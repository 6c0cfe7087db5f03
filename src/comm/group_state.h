#pragma once

// What a Group handle points to. The step protocol in sync/ uses it to reach the collectives, the
// board and the members' job ranks.

#include <memory>
#include <string>
#include <vector>

#include "comm/local/operation.h"
#include "job/job_state.h"
#include "job/rank_set.h"

namespace tutti {

class LocalCollectives;

class GroupState {
 public:
  GroupState(std::shared_ptr<JobState> job, std::vector<int> ranks, std::string name);
  ~GroupState();

  JobState& job() const { return *job_; }
  const std::shared_ptr<JobState>& shared_job() const { return job_; }
  LocalCollectives& collectives() const { return *collectives_; }
  /// See LocalCollectives::ask_also.
  void ask_also(PartnerCheck check) const;
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  /// The members' job ranks.
  const RankSet& members() const { return members_; }

 private:
  std::shared_ptr<JobState> job_;
  std::vector<int> ranks_;
  std::string name_;
  int rank_ = 0;
  RankSet members_;
  std::unique_ptr<LocalCollectives> collectives_;
};

}  // namespace tutti
