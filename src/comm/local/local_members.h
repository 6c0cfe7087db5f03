#pragma once

// What the lanes of a local group share (group_lanes.h): who its members are, the memory through
// which they speak, and how the group ended.
//
// Threads: those of the group, one at a time. Failure: none after the constructor.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/hosts/host_layout.h"
#include "comm/local/control_arena.h"
#include "comm/local/ending.h"
#include "comm/local/operation.h"
#include "comm/local/region_table.h"
#include "comm/local/transfer.h"
#include "job/job_state.h"

namespace tutti {

class LocalCollectives;

/// The members of the group. `ranks` are job ranks.
struct LocalGroup {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;              ///< position of this member in `ranks`
  std::vector<int> host_of;  ///< by member, numbered from 0
  int lanes = 1;             ///< the same on all members
  /// Throws where some of them will not come any more. May be empty.
  std::function<void()> check = {};
};

struct LocalMembers {
  /// Waits for the other members. Throws what the rendezvous throws, Mismatch where members ask for
  /// different numbers of lanes, and OutOfMemory where the control memory does not fit.
  LocalMembers(JobState& job, LocalGroup group);
  LocalMembers(const LocalMembers&) = delete;
  LocalMembers& operator=(const LocalMembers&) = delete;

  /// The member that makes what those of this host share.
  int first_here() const { return layout.team.member(0); }
  int members_here() const { return layout.team.size(); }
  int rank_of(int member) const { return group.ranks[static_cast<std::size_t>(member)]; }
  /// Keeps a block that has just been mapped known to the other hosts. One member of this host
  /// gives its memory.
  std::shared_ptr<void> hold_block(const std::string& name, const Arena& arena, bool gives);

  JobState& job;
  LocalGroup group;
  HostLayout layout;
  Membership members;
  RankSet ranks;     ///< job ranks
  bool spans_hosts;  ///< members share no memory but what is stored to on all hosts
  std::shared_ptr<void> held_control;
  std::string tag;  ///< of this group at the rendezvous
  ControlArena control;
  RegionTable regions;
  std::optional<EndingReason> ended;  ///< the reason as this member has it
  /// While this member ends the group, or waits for the reason, which may take a wait of its own:
  /// no lane moves aside of it.
  bool is_ending = false;
  PartnerCheck partners;                 ///< see GroupLanes::ask_also()
  std::vector<LocalCollectives*> lanes;  ///< by their numbers

 private:
  ControlArena join_members();
  Arena exchange_control(const std::string& refusal, std::string& failure);
};

}  // namespace tutti
