#pragma once

// Moves the data of one operation once all members have arrived, in chunks of three parts each:
//
//   stage   copy what others need of this member's private memory into its staging half
//   work    fold this member's slice from all members' data, or fetch what others gave
//   collect copy results that others folded into this member's private memory
//
// Data in memory that all members map is not staged or collected: slice owners read and write it in
// place, in one chunk of any size. All members compute the same chunks from the same arrivals.
//
// Between hosts the same chunks go by HostTransfer (host_transfer.h).
//
// Threads: one; the caller orders the parts among members. Failure: none.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/hosts/host_layout.h"
#include "comm/local/control_arena.h"
#include "comm/local/operation.h"
#include "comm/local/region_table.h"
#include "kernels/fold.h"
#include "kernels/fold_program.h"
#include "tutti/job.h"

namespace tutti {

/// The members that take part, and the order in which values are folded.
struct Membership {
  int rank;
  int size;
  FoldProgram program;
  const HostLayout* hosts = nullptr;  ///< where they are on several
};

/// Divisor that turns this reduction's fold over `members` values into its result.
double divisor_of(Reduction reduction, int members) noexcept;

class Transfer {
 public:
  /// The operation `sequence` of the group. `in` is null where this member gives nothing.
  void begin(const Operation& operation, const Membership& members, const ControlArena& control,
             std::uint64_t sequence);
  /// Bytes that the largest giver gives: decides between the two ways, alike on all members. Where
  /// each says what it gives to whom, this one's.
  std::size_t contribution() const { return contribution_; }
  /// Whether each says what it gives to whom, which the others know when all have arrived.
  bool is_pairwise() const { return is_pairwise_; }
  /// Two members of which the one does not take what the other gives; none where all agree.
  struct Pair {
    int giver;
    int taker;
  };
  std::optional<Pair> disagreeing() const;

  // Small operations: every member's contribution lies in its inline buffer.
  void write_inline() const;
  void finish_inline() const;

  // Large ones.
  /// True if others need this member's data.
  bool gives() const { return gives(members_->rank); }
  /// Lays out chunks as if some member stages, which is certain once this member has to.
  void assume_staging();
  /// Decides from all members' arrivals who stages, who collects, and how many chunks there are.
  void resolve(const RegionTable& regions, std::uint64_t held_by_all);
  std::uint64_t chunks() const { return chunks_; }
  /// True if data or results pass through the halves, so that members must keep in step.
  bool passes_through() const { return anyone_stages_ || anyone_collects_; }
  /// True if this member must not leave a chunk before all others have worked on it.
  bool must_see_all_work() const;
  /// True if so for every member of one host, wherever its memory lies.
  bool all_see_all_work() const;
  /// `half` is the chunk's number within the group, of which the parity counts.
  void stage(std::uint64_t chunk, std::uint64_t half) const;
  void work(std::uint64_t chunk, std::uint64_t half) const;
  void collect(std::uint64_t chunk, std::uint64_t half) const;

 private:
  friend class HostTransfer;
  struct Range {
    std::int64_t begin;
    std::int64_t end;
    std::int64_t count() const { return end > begin ? end - begin : 0; }
  };
  Range chunk_range(std::uint64_t chunk) const;
  /// Part `which` of `parts` of a range.
  static Range cut(Range range, int which, int parts);
  /// The part of the chunk that `owner` folds.
  Range slice(Range range, int owner) const { return cut(range, owner, members_->size); }
  /// The elements of a chunk that a part of `count` elements has, counted in the part.
  static Range within(Range range, std::int64_t count) {
    return {range.begin, std::min(range.end, count)};
  }
  bool gives(int member) const { return !is_from_root(kind_) || member == root_; }
  bool takes(int member) const { return !is_to_root(kind_) || member == root_; }
  /// The part of `which` where parts of these sizes are joined; all have extent_ without any.
  Range joined(std::span<const std::int64_t> counts, int which) const;
  /// The part of the joined buffer that belongs to `member`, of all that have one.
  Range part(int member) const { return joined(counts_, member); }
  /// The elements of `giver`'s `in` that are for `taker`, and those of `taker`'s `out` that they
  /// become.
  Range given(int giver, int taker) const;
  Range taken(int giver, int taker) const;
  /// What is cut into chunks, as soon as all have said what they give to whom.
  void agree_on_extent();
  void stage_parts(Range range, std::byte* to) const;
  bool collects(int member) const;
  std::size_t size_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_bytes_;
  }
  const std::byte* in_at(std::int64_t element) const { return in_ + size_bytes(element); }
  std::byte* out_at(std::int64_t element) const { return out_ + size_bytes(element); }
  void fold_into(const std::array<const void*, kMaxWorkers>& sources, void* const* destinations,
                 std::size_t destination_count, std::int64_t count) const;
  /// Folds values of this operation; `work` has neither their types nor the reduction. Sources
  /// are `present` of the tree over all members, where they are more than one program takes.
  void fold_values(Fold work, std::span<const Block> present) const;
  void work_reduce(Range range, std::uint64_t half) const;
  void work_reduce_scatter(Range range, std::uint64_t half) const;
  void work_gather(Range range, std::uint64_t half) const;
  void work_exchange(Range range, std::uint64_t half) const;
  void work_broadcast(Range range, std::uint64_t half) const;

  const Membership* members_ = nullptr;
  const ControlArena* control_ = nullptr;
  OperationKind kind_ = OperationKind::barrier;
  Reduction reduction_ = Reduction::sum;
  DType dtype_ = DType::float32;
  int root_ = 0;
  std::size_t element_bytes_ = 1;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::int64_t extent_ = 0;           ///< elements that are cut into chunks
  std::vector<std::int64_t> counts_;  ///< of unequal parts
  bool is_pairwise_ = false;
  std::uint64_t sequence_ = 0;
  std::size_t contribution_ = 0;

  std::int64_t chunk_elements_ = 0;
  std::uint64_t chunks_ = 0;
  bool anyone_stages_ = false;
  bool anyone_collects_ = false;
  bool others_collect_ = false;
  std::vector<const std::byte*> in_place_;  ///< by member; null: private to its giver
  std::vector<std::byte*> out_place_;
};

}  // namespace tutti
