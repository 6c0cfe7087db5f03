#pragma once

// The members of a lane, as one of them sees them in the lane's memory: how far each is, and
// whether all ask for the same.
//
// Threads: one. Failure: none.

#include <cstdint>
#include <string>

#include "comm/local/control_arena.h"
#include "comm/local/local_members.h"
#include "comm/local/transfer.h"
#include "job/wire/rank_set.h"

namespace tutti {

class LaneMembers {
 public:
  /// What all members must have done before one of them continues.
  enum class Goal { arrived, staged, worked, finished, travelled };

  /// Keeps references.
  LaneMembers(const LocalMembers& members, const ControlArena& control)
      : members_(members), control_(control) {}

  bool has_reached(int member, Goal goal, std::uint64_t value) const;
  /// Across hosts a member's own part counts once it is in the order of all (job/publish.h).
  bool waits_for(int member) const {
    return members_.spans_hosts || member != members_.members.rank;
  }
  bool all_reached(Goal goal, std::uint64_t value) const;
  /// Job ranks of the others that have not.
  RankSet behind(Goal goal, std::uint64_t value) const;
  /// Whether every member's contribution is in its inline buffer.
  bool all_inlined(std::uint64_t sequence) const;
  /// Whether all, who have arrived, ask for the same.
  bool agree(std::uint64_t sequence) const;
  /// What each member has asked for.
  std::string how_calls_differ(std::uint64_t sequence) const;
  std::string how_pair_differs(std::uint64_t sequence, const Transfer::Pair& pair) const;

 private:
  int size() const { return members_.members.size; }
  std::uint64_t hash_of(int member, std::uint64_t sequence) const {
    return control_.arrival(member, sequence).hash.load(std::memory_order_relaxed);
  }
  std::string text_of(int member, std::uint64_t sequence) const {
    return describe(control_.record(member, sequence), size());
  }

  const LocalMembers& members_;
  const ControlArena& control_;
};

}  // namespace tutti
