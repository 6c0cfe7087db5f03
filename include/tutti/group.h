#pragma once

// Collectives among a set of workers, over spans of elements. tensors.h has the same for
// tensors.
//
// Every collective is called by all members, in the same order. On arrival the members' calls are
// compared (operation, reduction, dtype, counts, root, label); if they differ, each member gets a
// Mismatch that says which rank asked for what. A sum over ranks is folded along the canonical tree
// (docs/numerics.md), so all members get the same bits for any size, alignment or placement.
//
// A group has lanes (GroupOptions). Calls that were started on different lanes are under way at the
// same time; those of one lane complete in the order of their start. Which lane a call has follows
// from its number alone, so the order is the same on all members, whatever arrives when.
//
// Threads: one thread at a time per Group. Failure: Mismatch, PeerLost, Timeout end the group, all
// of its lanes: calls under way that lack something get the error, every later call repeats it, and
// a fresh Group can be made from the Job.
// InvalidArgument is thrown before anything is sent, and leaves the group usable on this worker;
// the others, which wait for it, are not told unless the call is made again correctly.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/dtype.h"
#include "tutti/job.h"
#include "tutti/limits.h"

namespace tutti {

class GroupState;

struct GroupOptions {
  /// How many calls make progress at the same time, 1 to kMaxGroupLanes: call k of the group runs
  /// on lane k modulo `lanes`. With 1 each call completes after the one before it. The same on all
  /// members, else each gets a Mismatch that names two. Each lane has control memory of its own,
  /// and connections between hosts: docs/group.md has what they cost.
  int lanes = 2;
};

struct CollectiveOptions {
  /// Named in errors and logs; part of what members compare. At most 63 bytes are kept.
  std::string_view label = {};
  /// How the elements are arranged, compared as well: the tensor overloads give sizes, then
  /// strides.
  std::span<const std::int64_t> layout = {};
  /// How long each wait of this call may last; the job's deadline if absent. Must be positive.
  std::optional<std::chrono::milliseconds> deadline = {};
};

/// A collective that was started. Destroying a Work that was not waited for waits for it.
/// Progress is made inside wait(), done() and other calls on the same group, and while the thread
/// that started it waits for something else of the job, not by a thread of its own: the memory
/// given to the call belongs to the group until wait() returns. A call that writes memory of
/// another one of the group that was not waited for, or touches what that one writes, is
/// InvalidArgument at its start.
class [[nodiscard]] Work {
 public:
  Work() = default;
  /// `after_all`: done when all calls before it are, too, as a barrier is. `then`: called by wait()
  /// once it is.
  Work(std::shared_ptr<GroupState> group, std::uint64_t call, bool after_all,
       std::function<void()> then = {});
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  ~Work();
  /// Returns when the result is there; throws what the collective failed with.
  void wait();
  /// True when wait() would return at once. Never blocks.
  bool done();

 private:
  std::shared_ptr<GroupState> group_;
  std::uint64_t call_ = 0;
  bool after_all_ = false;
  std::function<void()> then_;
};

/// Shared memory of a group: one block per member, all of the same size, or one for all; each is
/// mapped by every member.
/// Collectives on spans inside it move no extra byte. Freed when the last member lets go of it.
class SharedMemory {
 public:
  /// This member's block, 64-byte aligned, zero-filled.
  std::byte* data() const { return block(rank_); }
  std::byte* block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes() const { return bytes_; }

  SharedMemory(int rank, std::size_t bytes, std::vector<std::byte*> blocks,
               std::shared_ptr<void> owner)
      : rank_(rank), bytes_(bytes), blocks_(std::move(blocks)), owner_(std::move(owner)) {}

 private:
  int rank_;
  std::size_t bytes_;
  std::vector<std::byte*> blocks_;
  std::shared_ptr<void> owner_;
};

/// The collectives of a group. Those of Group itself return when the result is there (Result is
/// void); those of Group::start() return a Work, and where a comment says "returns", it is done.
template <class Result>
class Collectives {
 public:
  // `inout` is replaced by the result; with separate spans they must not overlap. Counts are in
  // elements. Zero elements are legal.
  Result all_reduce(View inout, Reduction reduction, const CollectiveOptions& options = {}) const;
  Result all_reduce(ConstView in, View out, Reduction reduction,
                    const CollectiveOptions& options = {}) const;
  /// Only `root` gets the result; other members' `out` may be empty and is not written.
  Result reduce(ConstView in, View out, Reduction reduction, int root,
                const CollectiveOptions& options = {}) const;
  /// `in` holds size() equal parts; `out` gets the reduced part of this rank. `out` may be the own
  /// part of `in`.
  Result reduce_scatter(ConstView in, View out, Reduction reduction,
                        const CollectiveOptions& options = {}) const;
  /// Part r of `in` has `counts[r]` elements; `out.count` must be counts[rank()]. All members give
  /// the same counts.
  Result reduce_scatter_variable(ConstView in, View out, std::span<const std::int64_t> counts,
                                 Reduction reduction, const CollectiveOptions& options = {}) const;
  /// `out` holds size() equal parts in rank order. `in` may be the own part of `out`.
  Result all_gather(ConstView in, View out, const CollectiveOptions& options = {}) const;
  /// Part r of `out` has `counts[r]` elements; `in.count` must be counts[rank()]. All members give
  /// the same counts.
  Result all_gather_variable(ConstView in, View out, std::span<const std::int64_t> counts,
                             const CollectiveOptions& options = {}) const;
  /// As all_gather, for `root` alone; other members' `out` may be empty and is not written.
  Result gather(ConstView in, View out, int root, const CollectiveOptions& options = {}) const;
  /// As all_gather_variable, for `root` alone.
  Result gather_variable(ConstView in, View out, std::span<const std::int64_t> counts, int root,
                         const CollectiveOptions& options = {}) const;
  Result broadcast(View inout, int root, const CollectiveOptions& options = {}) const;
  /// `in` of `root` holds size() equal parts in rank order, and `out` gets that of this rank; other
  /// members' `in` may be empty and is not read. `out` may be the own part of `in`.
  Result scatter(ConstView in, View out, int root, const CollectiveOptions& options = {}) const;
  /// As scatter, where part r has `counts[r]` elements. All members give the same counts.
  Result scatter_variable(ConstView in, View out, std::span<const std::int64_t> counts, int root,
                          const CollectiveOptions& options = {}) const;
  /// `in` and `out` hold size() equal parts each: part r of `in` becomes part rank() of rank r's
  /// `out`. They must not overlap.
  Result all_to_all(ConstView in, View out, const CollectiveOptions& options = {}) const;
  /// Part r of `in`, which has `given[r]` elements, becomes part rank() of rank r's `out`, for
  /// which that one's `taken[rank()]` must be the same; else all members get a Mismatch that names
  /// both.
  Result all_to_all_variable(ConstView in, std::span<const std::int64_t> given, View out,
                             std::span<const std::int64_t> taken,
                             const CollectiveOptions& options = {}) const;
  /// Returns when all members have called it, and all calls that this member made before it, on any
  /// lane, are complete here.
  Result barrier(const CollectiveOptions& options = {}) const;

  /// Gives `to` what its receive() of this rank takes. Messages from one member to another are
  /// taken in the order in which they were sent; those of other pairs, and the other direction, are
  /// apart. Both sides compare element type, count and label. Returns when `in` may be used again,
  /// which may be only once the receiver has come: of two members that both send first, each waits
  /// for the other, unless they start them. InvalidArgument without a connect() for the two.
  Result send(ConstView in, int to, const CollectiveOptions& options = {}) const;
  Result receive(View out, int from, const CollectiveOptions& options = {}) const;

 protected:
  explicit Collectives(std::shared_ptr<GroupState> state) : state_(std::move(state)) {}

  std::shared_ptr<GroupState> state_;

 private:
  friend class Group;
};
extern template class Collectives<void>;
extern template class Collectives<Work>;

class Group : public Collectives<void> {
 public:
  /// All workers of the job. Collective.
  explicit Group(const Job& job, std::string name = "world", const GroupOptions& options = {});
  /// The given workers (job ranks, ascending, this one among them). Collective among these.
  Group(const Job& job, std::vector<int> ranks, std::string name, const GroupOptions& options = {});

  /// Rank within this group.
  int rank() const;
  int size() const;
  /// Job rank of a member.
  int job_rank(int rank) const;
  const std::string& name() const;

  /// Members with the same colour form a new group, ordered as here. Collective.
  Group split(int colour, std::string name, const GroupOptions& options = {}) const;

  /// A block of `bytes` for each member, mapped by all. Pages cost memory only once touched:
  /// `needed` is how many bytes of its block a member is going to touch (all, unless given).
  /// Refused with OutOfMemory, on every member, when the sum of `needed` over the members does
  /// not fit the machine or a cgroup, or when one member cannot map it. Collective.
  SharedMemory allocate(std::size_t bytes, std::string_view what = "shared memory",
                        std::optional<std::size_t> needed = {}) const;
  /// One block of `bytes` that all members share: block(r) is the same memory for every r. No page
  /// is touched. Refused as above. Collective.
  SharedMemory allocate_common(std::size_t bytes, std::string_view what = "shared memory") const;

  /// The collectives, started and not waited for: Work sum = group.start().all_reduce(x, x, …).
  Collectives<Work> start() const { return Collectives<Work>(state_); }

  /// Makes ways for messages between the two members of each pair, both directions; those that are
  /// there already stay. Collective: all members give the same list. Where a way cannot be made the
  /// group ends. Each way takes the memory of a group of two (docs/group.md).
  void connect(std::span<const std::pair<int, int>> pairs) const;
  /// This member cannot go on: every other one gets PeerFailed, with this member's job rank and
  /// `why`, in the call in which it waits, or its next one. The group has ended, on this member
  /// too; nothing happens where it had already. Call it when an exception takes this member past
  /// calls that the others make.
  void fail(std::string_view why) const;

  explicit Group(std::shared_ptr<GroupState> state) : Collectives(std::move(state)) {}
  const std::shared_ptr<GroupState>& state() const { return state_; }
};

}  // namespace tutti
