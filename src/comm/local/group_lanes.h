#pragma once

// The collectives of a group, on lanes: operations of one lane complete in the order of their
// start, those of different lanes make progress independently.
//
// Call k of the group, from 1, runs on lane (k − 1) % lanes as that lane's operation
// (k − 1) / lanes + 1. So where a call runs, and what it is compared with on the other members,
// follows from its number alone, whatever arrives when: the order of calls is the same on all
// members or the comparison finds the first one that differs.
//
// Threads: one at a time. Failure: the member that finds a reason ends all lanes of the group for
// all members; every later call throws it again.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/local/calls_under_way.h"
#include "comm/local/local_collectives.h"
#include "comm/local/local_members.h"

namespace tutti {

/// Shared memory that all members ask for alike.
struct MemoryRequest {
  std::size_t bytes = 0;   ///< of a block
  std::size_t needed = 0;  ///< bytes that each member is going to touch
  std::string_view what;
  bool common = false;  ///< one block for all instead of one for each
};

/// The result of a request: the block of each member, mapped here for as long as `owner` lives.
struct MemoryBlocks {
  std::vector<std::byte*> of_members;
  std::shared_ptr<void> owner;
};

class GroupLanes {
 public:
  /// See LocalMembers.
  GroupLanes(JobState& job, LocalGroup group);
  GroupLanes(const GroupLanes&) = delete;
  GroupLanes& operator=(const GroupLanes&) = delete;

  int lanes() const { return static_cast<int>(lanes_.size()); }
  const HostLayout& layout() const { return members_.layout; }
  /// What large operations of a group on several hosts may use. Must live longer than they do.
  void use(HostChannel& channel) {
    for (const auto& lane : lanes_) lane->use(channel);
  }
  /// See Group::allocate and Group::allocate_common.
  MemoryBlocks allocate(const MemoryRequest& request);
  /// Returns the call's number, from 1. InvalidArgument, with nothing started, where it writes
  /// memory of a call that is under way, or that one writes its.
  std::uint64_t start(const Operation& operation);
  /// InvalidArgument where a call has some of this memory of a device until give_back().
  void require_apart(const ConstView& original);
  /// The call, which was waited for, leaves the program its memory of a device.
  void give_back(std::uint64_t call) { under_way_.give_back(call); }
  /// Makes what progress it can without waiting, on all lanes; true when the call is complete.
  bool test(std::uint64_t call);
  void wait(std::uint64_t call);
  /// The same for all calls up to that one.
  bool test_up_to(std::uint64_t call);
  void wait_up_to(std::uint64_t call);
  /// Slow waits of operations also ask this one, until an empty one takes its place: the step
  /// protocol knows more of the members' lives than the group does. What it throws ends the group.
  void ask_also(PartnerCheck check) { members_.partners = std::move(check); }
  /// Throws the reason if the group has ended.
  void check();
  /// Ends the group because this member cannot go on: PeerFailed on the others, if none has ended
  /// it.
  void fail(std::string_view why) { lanes_.front()->fail(why); }
  /// Calls that this member has started.
  std::uint64_t started() const { return started_; }
  /// Ends the group because of the exception being handled.
  void end_with_current_exception() { lanes_.front()->end_with_current_exception(); }

 private:
  class InUse;

  std::size_t lane_of(std::uint64_t call) const { return (call - 1) % lanes_.size(); }
  std::uint64_t sequence_of(std::uint64_t call) const { return (call - 1) / lanes_.size() + 1; }

  [[noreturn]] void refuse(const Operation& operation, const CallsUnderWay::Clash& clash);

  // Memory (group_lanes_memory.cpp).
  std::uint64_t agree(const std::string& refusal, const std::string& label);
  std::vector<Arena> exchange_arenas(const MemoryRequest& request, std::string& failure);
  struct CommonArena {
    Arena arena;
    std::shared_ptr<void> held;
  };
  CommonArena exchange_common_arena(const MemoryRequest& request, std::string& failure);

  LocalMembers members_;
  std::vector<std::unique_ptr<LocalCollectives>> lanes_;
  CallsUnderWay under_way_;
  std::uint64_t started_ = 0;
  std::uint64_t allocations_ = 0;
};

}  // namespace tutti
