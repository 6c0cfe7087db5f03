#pragma once

// Members of a job with collectives among them: who they are, and on which hosts.
//
// Threads and failure: as Group.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/hosts/host_layout.h"
#include "comm/local/operation.h"
#include "job/job_state.h"
#include "job/wire/rank_set.h"
#include "tutti/group.h"

namespace tutti {

class GroupLanes;

/// Of groups that the library makes for itself: never are two of their calls under way, or they are
/// messages, which are taken in their order.
inline constexpr GroupOptions kOneLane{.lanes = 1};

class Communicator {
 public:
  /// `check`: see LocalGroup.
  Communicator(std::shared_ptr<JobState> job, std::vector<int> ranks, std::string name,
               const GroupOptions& options, std::function<void()> check = {});
  ~Communicator();

  JobState& job() const { return *job_; }
  const std::shared_ptr<JobState>& shared_job() const { return job_; }
  GroupLanes& collectives() const { return *collectives_; }
  /// Calls that this member has made, the same on all members between calls.
  std::uint64_t calls() const;
  /// See GroupLanes::ask_also.
  void ask_also(PartnerCheck check) const;
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  /// The members' job ranks.
  const RankSet& members() const { return members_; }
  const HostLayout& layout() const { return layout_; }
  const Team& team() const { return layout_.team; }
  /// Whether members are on several hosts.
  bool spans_hosts() const { return layout_.spans_hosts(); }
  /// Hosts that members are on, numbered by their first members.
  int hosts() const { return layout_.hosts; }
  int host_of(int member) const { return layout_.host_of[static_cast<std::size_t>(member)]; }
  /// The first members of all hosts, in the order of the hosts' numbers; null on the others. Made
  /// by the first call, which is collective among those; `check` is asked then, besides whether
  /// this group has ended (LocalGroup).
  const std::shared_ptr<Communicator>& first_of_hosts(const std::function<void()>& check = {});
  /// That host's first member, and its job rank.
  int first_member_of(int host) const { return layout_.first_of[static_cast<std::size_t>(host)]; }
  int first_of(int host) const { return ranks_[static_cast<std::size_t>(first_member_of(host))]; }

 private:
  std::shared_ptr<JobState> job_;
  std::vector<int> ranks_;
  std::string name_;
  int rank_ = 0;
  RankSet members_;
  std::shared_ptr<Communicator> first_of_hosts_;
  std::unique_ptr<GroupLanes> collectives_;
  const HostLayout& layout_;
};

}  // namespace tutti
