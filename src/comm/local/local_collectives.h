#pragma once

// One lane of a group's collectives (group_lanes.h): members see each other's memory and tell each
// other by counters in it how far they are. docs/group.md describes the two ways of an operation
// and what they cost.
//
// Threads: one per member. Failure: the member that finds a reason ends the group, all of its
// lanes, for all; every later call throws it again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "comm/hosts/host_channel.h"
#include "comm/hosts/host_pipeline.h"
#include "comm/local/control_arena.h"
#include "comm/local/lane_members.h"
#include "comm/local/local_members.h"
#include "comm/local/operation.h"
#include "comm/local/region_table.h"
#include "comm/local/transfer.h"
#include "job/background.h"
#include "job/job_state.h"
#include "job/wait.h"
#include "memory/arena.h"

namespace tutti {

class LocalCollectives final : public Unfinished {
 public:
  /// Keeps a reference.
  LocalCollectives(LocalMembers& members, int lane);
  ~LocalCollectives() override;
  LocalCollectives(const LocalCollectives&) = delete;
  LocalCollectives& operator=(const LocalCollectives&) = delete;

  /// What large operations between hosts use. Keeps a reference.
  void use(HostChannel& channel);
  /// Returns the operation's sequence number, from 1. Operations complete in this order.
  std::uint64_t start(const Operation& operation);
  /// Makes what progress it can without waiting; true when the operation is complete.
  bool test(std::uint64_t sequence);
  void wait(std::uint64_t sequence);
  /// Moves what it can aside of what its thread waits for; without a deadline.
  bool progress() override;
  /// What was started here, if there is something, moves while its thread waits elsewhere: not
  /// while a call is made on this lane.
  void enter_background();
  void leave_background();
  /// If it moves in the background, this thread moves it from now on.
  void move_to_this_thread();
  /// `all-reduce sum float32[10] "weight", call 3 of group "world"`.
  std::string what(std::uint64_t sequence) const;
  /// Throws the reason if the group has ended.
  void check() { check_open(completed_ + 1); }
  /// Ends the group because this member cannot go on: PeerFailed on the others, if none has ended
  /// it.
  void fail(std::string_view why);
  /// Ends the group because of the exception being handled, unless it has ended.
  void end_with_current_exception();

 private:
  using Goal = LaneMembers::Goal;
  enum class Phase { arriving, staging, working };
  /// How far an operation proceeds: to its end; as far as it can; the same for a thread that waits
  /// for something else, without a deadline.
  enum class Drive { wait, poll, aside };
  /// The algorithm of an operation; when all have arrived by_place is replaced by one of the
  /// others, and slices by links where there are several hosts.
  enum class Way { one_wait, by_place, slices, links };

  /// An operation of this member between start() and its end.
  struct Pending {
    Transfer transfer;
    Phase phase = Phase::arriving;
    Way way = Way::one_wait;
    std::uint64_t hash = 0;
    std::uint64_t chunk = 0;   ///< the one under way
    std::uint64_t staged = 0;  ///< chunks of this operation staged so far
    std::optional<std::chrono::milliseconds> patience;
    std::vector<std::shared_ptr<void>> pins;
    std::shared_ptr<ComingInput> input;
  };
  /// The wait of a thread that polls, since it first found a part missing.
  struct Polled {
    Goal goal;
    std::uint64_t value;
    Clock::time_point since;
    Clock::time_point looked;
    std::unique_ptr<WaitWatch> watch;  ///< made when it lasts
  };
  Pending& pending(std::uint64_t sequence) { return pending_[sequence % kRing]; }

  // Several hosts (local_collectives_hosts.cpp).
  void publish_arrival(std::uint64_t sequence);
  bool advance_over_links(std::uint64_t sequence, Drive drive);

  // Starting (local_collectives_start.cpp).
  void make_room(std::uint64_t sequence);
  Way way_of(const Transfer& transfer, OperationKind kind) const;
  /// What others need of this member for its first wait.
  void lay_ready(std::uint64_t sequence);
  /// The others hear of those whose input has come, in their order. False where the oldest
  /// operation is not among them, for which `wait` waits.
  bool arrive_ready(Drive drive);

  // Progress (local_collectives_progress.cpp).
  /// Makes progress on the oldest operation. Returns false where it would have to wait and may not.
  bool advance(Drive drive);
  bool advance_large(std::uint64_t sequence, Drive drive);
  void stage_chunk(Pending& operation, std::uint64_t chunk);
  void finish(std::uint64_t sequence);
  bool wait_for(Goal goal, std::uint64_t value, std::uint64_t sequence, Drive drive);
  WaitSubject subject_of(Goal goal, std::uint64_t value, std::uint64_t sequence);

  // Failure (local_collectives_failure.cpp).
  /// The number in the group of the lane's operation.
  std::uint64_t call_of(std::uint64_t sequence) const {
    return (sequence - 1) * shared_.lanes.size() + static_cast<std::uint64_t>(lane_) + 1;
  }
  /// Checks the peers periodically, for tests of a call that is not waited for.
  void poll_peers(Goal goal, std::uint64_t value, std::uint64_t sequence);
  /// Ends the group for the first call, of those up to this one, in which members disagree: alike
  /// on all members, whichever lane each looks at first.
  [[noreturn]] void fail_first_mismatch(std::uint64_t sequence);
  /// The lane's first operation up to that call in which members are known to disagree; 0: none.
  std::uint64_t first_mismatch_up_to(std::uint64_t call) const;
  void end(EndingReason reason);
  /// The same where the exception has ended a wait of an operation: throws it, unless the operation
  /// has succeeded in spite of it.
  void end_operation(std::uint64_t sequence);
  /// True if no member leaves this operation before all others have done their part of it, so that
  /// it ends alike for all.
  bool ends_alike(std::uint64_t sequence);
  /// True if the operation, of those under way, has the parts of all members.
  bool lacks_nothing(std::uint64_t sequence);
  /// The lane's first operation that fails if the group ends now.
  std::uint64_t first_failed();
  /// The group has ended, but not yet for this operation.
  bool has_succeeded(std::uint64_t sequence);
  /// Throws the reason if the group has ended for this operation.
  void check_open(std::uint64_t sequence);

  LocalMembers& shared_;
  int lane_;
  // What is in `shared_`.
  JobState& job_;
  const LocalGroup& group_;
  const Membership& members_;
  const RankSet& member_ranks_;
  const bool spans_hosts_;
  RegionTable& regions_;
  std::optional<EndingReason>& ended_;

  ControlArena control_;  ///< the lane's
  const LaneMembers lane_members_;
  HostChannel* channel_ = nullptr;
  std::optional<HostPipeline> pipeline_;  ///< where members are on several hosts

  std::array<Pending, kRing> pending_;
  std::uint64_t started_ = 0;
  std::uint64_t arrived_ = 0;  ///< of these the others may have heard
  std::uint64_t completed_ = 0;
  std::uint64_t known_finished_ = 0;  ///< all members have finished this many operations, or more
  std::uint64_t chunks_done_ = 0;     ///< of all completed large operations
  std::uint64_t moves_ = 0;           ///< changes of any operation's state
  std::optional<Polled> polled_;
  bool has_background_ =
      false;                    ///< something under way progresses while its thread waits elsewhere
  bool in_background_ = false;  ///< and no call is being made
  std::thread::id moved_by_;    ///< while in background
};

}  // namespace tutti
