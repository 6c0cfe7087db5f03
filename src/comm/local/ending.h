#pragma once

// The end of a local group, in shared memory: the first member that finds a reason writes it, the
// others fail with the same class of error and the same text, from the same call on.
//
// Each lane of the group (group_lanes.h) has a first call that fails. That members agree on it
// takes two rules. A member that has all it needs for its call looks at the ending once more, and
// succeeds if there is none. A member that ends the group looks once more, after the state has left
// `open`, which of its calls under way lack nothing, and those succeed: the first that lacks
// something fails. A member that found the group open had seen the parts of all: the one that ends
// it sees them too.
//
// Threads: atomics only. Failure: a member that ends while it writes leaves an ending without a
// text; the others get PeerLost instead of the reason.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "job/job_state.h"
#include "job/wire/board.h"
#include "tutti/error.h"
#include "tutti/limits.h"

namespace tutti {

enum class EndingKind : std::uint32_t { mismatch, peer_lost, timeout, peer_failed };

/// The reason why a group ended.
struct EndingReason {
  EndingKind kind = EndingKind::peer_failed;
  int job_rank = -1;  ///< peer_lost, peer_failed: who it was
  int found_by = -1;  ///< job rank of the member that found it
  /// By lane: the first of its operations that fails.
  std::array<std::uint64_t, kMaxGroupLanes> first_failed = {};
  std::string text;
  /// Throws the error class of `kind`.
  [[noreturn]] void raise() const;
};

struct alignas(kCacheLine) Ending {
  /// States from `being_written` on encode the job rank of the writer.
  enum State : std::uint32_t { open = 0, written = 1, being_written = 2 };
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> kind;
  std::atomic<std::int32_t> job_rank;
  std::atomic<std::int32_t> found_by;
  std::array<std::atomic<std::uint64_t>, kMaxGroupLanes> first_failed;
  SharedText<4096> text;
};

/// True if the group has not ended.
inline bool is_open(const Ending& ending) noexcept {
  return ending.state.load(std::memory_order_seq_cst) == Ending::open;
}
/// Writes the reason, found by a member, unless there is one already. `first_failed` tells which
/// operation of a lane is the first that fails; it is asked once the group is no longer open.
void end_with(JobState& job, Ending& ending, const EndingReason& reason, int lanes,
              const std::function<std::uint64_t(int lane)>& first_failed);
/// The reason of a group that is not open. Its writer is waited for as for any other thing:
/// throws PeerLost when it has ended, Timeout at the job's deadline.
EndingReason reason_of(const Ending& ending, JobState& job);

}  // namespace tutti
