#pragma once

// The collectives of a group on one host: members see each other's memory and tell each other by
// counters in it how far they are. docs/group.md describes the two ways of an operation and what
// they cost.
//
// Threads: one per member. Failure: the member that finds a reason ends the group for all; every
// later call throws it again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "comm/local/control_arena.h"
#include "comm/local/host_channel.h"
#include "comm/local/host_layout.h"
#include "comm/local/operation.h"
#include "comm/local/region_table.h"
#include "comm/local/transfer.h"
#include "job/background.h"
#include "job/job_state.h"
#include "job/wait.h"
#include "memory/arena.h"

namespace tutti {

/// The members of the group. `ranks` are job ranks.
struct LocalGroup {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;              ///< position of this member in `ranks`
  std::vector<int> host_of;  ///< by member, numbered from 0
  /// Throws where some of them will not come any more. May be empty.
  std::function<void()> check = {};
};

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

class LocalCollectives final : private Unfinished {
 public:
  /// Waits for the other members. Throws what the rendezvous throws, and OutOfMemory where the
  /// control memory does not fit.
  LocalCollectives(JobState& job, LocalGroup group);
  ~LocalCollectives();
  LocalCollectives(const LocalCollectives&) = delete;
  LocalCollectives& operator=(const LocalCollectives&) = delete;

  /// What large operations of a group on several hosts may use. Must live longer than they do.
  void use(HostChannel& channel) { channel_ = &channel; }
  /// See Group::allocate and Group::allocate_common.
  MemoryBlocks allocate(const MemoryRequest& request);
  /// Returns the operation's sequence number, from 1. Operations complete in this order.
  std::uint64_t start(const Operation& operation);
  /// Makes what progress it can without waiting; true when the operation is complete.
  bool test(std::uint64_t sequence);
  void wait(std::uint64_t sequence);
  /// Slow waits of operations also ask this one, until an empty one takes its place: the step
  /// protocol knows more of the members' lives than the group does. What it throws ends the group.
  void ask_also(PartnerCheck check) { partners_ = std::move(check); }
  /// Throws the reason if the group has ended.
  void check() { check_open(completed_ + 1); }
  /// Ends the group because this member cannot go on: PeerFailed on the others, if none has ended
  /// it.
  void fail(std::string_view why);
  /// Operations that this member has started.
  std::uint64_t started() const { return started_; }
  /// Ends the group because of the exception being handled.
  void end_with_current_exception();

 private:
  /// Something all members must have done before this one continues.
  enum class Goal { arrived, staged, worked, finished, travelled };
  enum class Phase { arriving, staging, working };
  /// How far an operation proceeds: to its end; as far as it can; the same for a thread that waits
  /// for something else, without a deadline.
  enum class Drive { wait, poll, aside };
  /// The algorithm of an operation; when all have arrived by_place is replaced by one of the
  /// others, and slices by links where hosts have some.
  enum class Way { one_wait, by_place, slices, links };

  /// How many chunks of an operation between hosts this member has done what with, besides staging
  /// them. Each half of the chunk memory is used again once all of a host have collected from it.
  struct HostTravel {
    std::uint64_t folded = 0;       ///< what this host has by itself
    std::uint64_t posted = 0;       ///< driver: nodes
    std::uint64_t came = 0;         ///< driver: all nodes have come and left
    std::uint64_t summed = 0;       ///< the own share of this host's slice
    std::uint64_t posted_sums = 0;  ///< driver
    std::uint64_t gathered = 0;     ///< driver: all sums have come and left
    std::uint64_t collected = 0;    ///< results are where they belong
  };
  /// An operation of this member between start() and its end.
  struct Pending {
    Transfer transfer;
    Phase phase = Phase::arriving;
    Way way = Way::one_wait;
    std::uint64_t hash = 0;
    std::uint64_t chunk = 0;   ///< the one under way
    std::uint64_t staged = 0;  ///< chunks of this operation staged so far
    HostTravel travel;
    std::optional<std::chrono::milliseconds> patience;
    std::vector<std::shared_ptr<void>> pins;
  };
  /// The wait of a thread that polls, since it first found a part missing.
  struct Polled {
    Goal goal;
    std::uint64_t value;
    Clock::time_point since;
    Clock::time_point looked;
    std::unique_ptr<WaitWatch> watch;  ///< made when it lasts
  };
  /// Keeps what was started from moving while a call is made.
  class InUse {
   public:
    explicit InUse(LocalCollectives& collectives) : collectives_(collectives) {
      if (collectives_.in_background_) collectives_.leave_background();
    }
    ~InUse() {
      if (collectives_.has_background_) collectives_.enter_background();
    }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    LocalCollectives& collectives_;
  };

  Pending& pending(std::uint64_t sequence) { return pending_[sequence % kRing]; }

  // Several hosts (local_collectives_hosts.cpp).
  /// The member that makes what those of this host share.
  int first_here() const { return layout_.team.front(); }
  int members_here() const { return static_cast<int>(layout_.team.size()); }
  /// Keeps a block that has just been mapped known to the other hosts. One member of this host
  /// gives its memory.
  std::shared_ptr<void> hold_block(const std::string& name, const Arena& arena, bool gives);
  struct CommonArena {
    Arena arena;
    std::shared_ptr<void> held;
  };
  CommonArena exchange_common_arena(const MemoryRequest& request, std::string& failure);
  void publish_arrival(std::uint64_t sequence);
  void publish_staged(const Pending& operation, std::uint64_t chunk, std::uint64_t number);
  void publish_worked(const Pending& operation, std::uint64_t chunk, std::uint64_t number);

  // Large operations between hosts that have a link (local_collectives_travel.cpp).
  /// Whether all hosts make links by the same engine, as their arrivals say.
  bool have_links(std::uint64_t sequence);
  bool advance_over_links(std::uint64_t sequence, Drive drive);
  bool travel(Pending& operation);
  bool drive_link(Pending& operation);
  void post(Pending& operation, HostChannel::Lane lane, std::uint64_t chunk);
  /// Of this host's members.
  std::uint64_t least(Counter MemberProgress::*counter) const;
  void tell(Counter MemberProgress::*counter, std::uint64_t value);
  const OpenMessages& open_messages(HostChannel::Lane lane, std::uint64_t number) const {
    return open_messages_[(lane == HostChannel::kSums ? 2 : 0) + number % 2];
  }
  OpenMessages& open_messages(HostChannel::Lane lane, std::uint64_t number) {
    return open_messages_[(lane == HostChannel::kSums ? 2 : 0) + number % 2];
  }
  RankSet late_in_travel(const Pending& operation) const;

  // Memory (local_collectives_memory.cpp).
  std::uint64_t agree(const std::string& refusal, const std::string& label);
  std::vector<Arena> exchange_arenas(const MemoryRequest& request, std::string& failure);

  // Starting (local_collectives_start.cpp).
  ControlArena join_members();
  Arena exchange_control(const std::string& refusal, std::string& failure);
  void make_room(std::uint64_t sequence);
  Way way_of(const Transfer& transfer, OperationKind kind) const;
  void note_places(std::uint64_t sequence, const Operation& operation);
  void begin_by_place(std::uint64_t sequence);
  void begin_slices(std::uint64_t sequence);

  // Progress (local_collectives_progress.cpp).
  /// Makes progress on the oldest operation. Returns false where it would have to wait and may not.
  bool advance(Drive drive);
  bool advance_large(std::uint64_t sequence, Drive drive);
  void stage_chunk(Pending& operation, std::uint64_t chunk);
  void finish(std::uint64_t sequence);
  bool has_reached(int member, Goal goal, std::uint64_t value) const;
  /// Across hosts a member's own part counts once it is in the order of all (job/publish.h).
  bool waits_for(int member) const { return spans_hosts_ || member != members_.rank; }
  bool all_reached(Goal goal, std::uint64_t value) const;
  bool wait_for(Goal goal, std::uint64_t value, std::uint64_t sequence, Drive drive);
  WaitSubject subject_of(Goal goal, std::uint64_t value, std::uint64_t sequence);
  bool progress() override;
  void enter_background();
  void leave_background();
  bool calls_agree(std::uint64_t sequence) const;
  /// Whether, after by_place, every member's contribution is in its inline buffer.
  bool all_inlined(std::uint64_t sequence) const;

  // Failure (local_collectives_failure.cpp).
  RankSet missing(Goal goal, std::uint64_t value) const;
  std::string what(std::uint64_t sequence) const;
  /// Checks the peers periodically, for tests of a call that is not waited for.
  void poll_peers(Goal goal, std::uint64_t value, std::uint64_t sequence);
  /// `how`, which is about a call in which members disagree, follows its number in the text.
  [[noreturn]] void fail_mismatch(std::uint64_t sequence, std::string_view how);
  /// What each member has asked for.
  std::string how_calls_differ(std::uint64_t sequence) const;
  std::string how_pair_differs(std::uint64_t sequence, const Transfer::Pair& pair) const;
  void end(EndingReason reason);
  /// True if no member leaves this operation before all others have done their part of it, so that
  /// it ends alike for all.
  bool ends_alike(std::uint64_t sequence);
  /// True if the oldest operation has the parts of all members.
  bool lacks_nothing();
  /// The group has ended, but not yet for this operation.
  bool has_succeeded(std::uint64_t sequence);
  /// Throws the reason if the group has ended for this operation.
  void check_open(std::uint64_t sequence);

  JobState& job_;
  LocalGroup group_;
  HostLayout layout_;
  Membership members_;
  RankSet member_ranks_;  ///< job ranks
  bool spans_hosts_;      ///< members share no memory but what is stored to on all hosts
  HostChannel* channel_ = nullptr;
  std::optional<bool> have_links_;             ///< unknown before the first large operation
  std::array<OpenMessages, 4> open_messages_;  ///< nodes, then sums, by half
  std::shared_ptr<void> held_control_;
  std::string tag_;  ///< of this group at the rendezvous
  ControlArena control_;
  RegionTable regions_;
  std::uint64_t allocations_ = 0;

  std::array<Pending, kRing> pending_;
  std::uint64_t started_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t known_finished_ = 0;  ///< all members have finished this many operations, or more
  std::uint64_t chunks_done_ = 0;     ///< of all completed large operations
  std::uint64_t moves_ = 0;           ///< changes of any operation's state
  std::optional<Polled> polled_;
  bool has_background_ =
      false;                    ///< something under way progresses while its thread waits elsewhere
  bool in_background_ = false;  ///< and no call is being made
  std::optional<EndingReason> ended_;
  PartnerCheck partners_;
};

}  // namespace tutti
