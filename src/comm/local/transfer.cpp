#include "comm/local/transfer.h"

#include <algorithm>
#include <numeric>

#include "comm/local/copy.h"
#include "tutti/share.h"

namespace tutti {
namespace {

/// Slices and chunks are cut at multiples of this many elements: no two owners share a cache line,
/// and vector loops run full.
constexpr std::int64_t kGrain = 64;

}  // namespace

double divisor_of(Reduction reduction, int members) noexcept {
  return reduction == Reduction::mean ? static_cast<double>(members) : 1.0;
}

void Transfer::begin(const Operation& operation, const Membership& members,
                     const ControlArena& control, std::uint64_t sequence) {
  members_ = &members;
  control_ = &control;
  sequence_ = sequence;
  kind_ = operation.kind == OperationKind::message ? OperationKind::broadcast : operation.kind;
  reduction_ = operation.reduction;
  dtype_ = operation.in.dtype;
  root_ = operation.root;
  element_bytes_ = size_of(dtype_);
  in_ = static_cast<const std::byte*>(operation.in.data);
  out_ = static_cast<std::byte*>(operation.out.data);
  counts_.assign(operation.counts.begin(), operation.counts.end());
  is_pairwise_ = operation.is_variable && kind_ == OperationKind::all_to_all;
  if (is_pairwise_) {
    const auto row = control.counts(members.rank, sequence);
    std::ranges::copy(operation.taken, std::ranges::copy(operation.counts, row.begin()).out);
  }
  extent_ = operation.in.count;
  if (kind_ == OperationKind::all_to_all) extent_ /= members.size;
  if (kind_ == OperationKind::reduce_scatter || kind_ == OperationKind::scatter) {
    extent_ = operation.out.count;
  }
  if (!counts_.empty()) extent_ = std::ranges::max(counts_);
  contribution_ = size_bytes(extent_);
  if (gives_parts(kind_)) {
    contribution_ =
        size_bytes(counts_.empty() ? members.size * extent_
                                   : std::accumulate(counts_.begin(), counts_.end(), 0LL));
  }
}

std::optional<Transfer::Pair> Transfer::disagreeing() const {
  if (!is_pairwise_) return {};
  const auto size = static_cast<std::size_t>(members_->size);
  for (std::size_t giver = 0; giver < size; ++giver) {
    const auto given = control_->counts(static_cast<int>(giver), sequence_);
    for (std::size_t taker = 0; taker < size; ++taker) {
      const auto taken = control_->counts(static_cast<int>(taker), sequence_);
      if (given[taker] != taken[size + giver]) {
        return Pair{static_cast<int>(giver), static_cast<int>(taker)};
      }
    }
  }
  return {};
}

void Transfer::assume_staging() {
  std::int64_t room = static_cast<std::int64_t>(kChunkBytes / element_bytes_);
  if (gives_parts(kind_)) room /= members_->size;
  chunk_elements_ = std::max(room / kGrain * kGrain, kGrain);
  chunks_ = static_cast<std::uint64_t>((extent_ + chunk_elements_ - 1) / chunk_elements_);
}

void Transfer::resolve(const RegionTable& regions, std::uint64_t held_by_all) {
  const auto is_shared = [&](const Location& at) {
    return at.in_region() && ((held_by_all >> at.region) & 1U) != 0;
  };
  anyone_stages_ = false;
  anyone_collects_ = false;
  others_collect_ = false;
  agree_on_extent();
  in_place_.resize(static_cast<std::size_t>(members_->size));
  out_place_.resize(static_cast<std::size_t>(members_->size));
  for (int member = 0; member < members_->size; ++member) {
    const auto m = static_cast<std::size_t>(member);
    const Arrival& arrival = control_->arrival(member, sequence_);
    in_place_[m] = is_shared(arrival.in) ? regions.address(member, arrival.in) : nullptr;
    out_place_[m] = is_shared(arrival.out) ? regions.address(member, arrival.out) : nullptr;
    if (gives(member) && in_place_[m] == nullptr) anyone_stages_ = true;
    if (!collects(member)) continue;
    anyone_collects_ = true;
    if (member != members_->rank) others_collect_ = true;
  }
  if (members_->size == 1) anyone_stages_ = anyone_collects_ = false;
  if (passes_through()) {
    assume_staging();
  } else {
    chunk_elements_ = extent_;
    chunks_ = 1;
  }
}

bool Transfer::collects(int member) const {
  if (!all_see_all_work() || !takes(member)) return false;
  return out_place_[static_cast<std::size_t>(member)] == nullptr;
}

bool Transfer::all_see_all_work() const {
  return kind_ == OperationKind::all_reduce || kind_ == OperationKind::reduce;
}

bool Transfer::must_see_all_work() const {
  if (all_see_all_work()) return true;
  if (kind_ == OperationKind::gather && takes(members_->rank)) return false;  // none else reads it
  return gives() && in_place_[static_cast<std::size_t>(members_->rank)] != nullptr;
}

Transfer::Range Transfer::chunk_range(std::uint64_t chunk) const {
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * chunk_elements_;
  return {begin, std::min(extent_, begin + chunk_elements_)};
}

Transfer::Range Transfer::cut(Range range, int which, int parts) {
  const auto [first, last] = share_of((range.count() + kGrain - 1) / kGrain, which, parts);
  return {std::min(range.end, range.begin + first * kGrain),
          std::min(range.end, range.begin + last * kGrain)};
}

void Transfer::agree_on_extent() {
  if (!is_pairwise_) return;
  extent_ = 0;
  for (int member = 0; member < members_->size; ++member) {
    extent_ = std::max(extent_, std::ranges::max(control_->counts(member, sequence_)));
  }
}

Transfer::Range Transfer::joined(std::span<const std::int64_t> counts, int which) const {
  if (counts.empty()) return {which * extent_, (which + 1) * extent_};
  const auto begin = std::accumulate(counts.begin(), counts.begin() + which, std::int64_t{0});
  return {begin, begin + counts[static_cast<std::size_t>(which)]};
}

Transfer::Range Transfer::given(int giver, int taker) const {
  if (!is_pairwise_) return part(taker);
  const auto size = static_cast<std::size_t>(members_->size);
  return joined(control_->counts(giver, sequence_).first(size), taker);
}

Transfer::Range Transfer::taken(int giver, int taker) const {
  if (kind_ == OperationKind::scatter) return {0, part(taker).count()};
  if (!is_pairwise_) return part(giver);
  const auto size = static_cast<std::size_t>(members_->size);
  return joined(control_->counts(taker, sequence_).last(size), giver);
}

void Transfer::stage(std::uint64_t chunk, std::uint64_t half) const {
  const Range range = chunk_range(chunk);
  std::byte* const to = control_->staging(members_->rank, half);
  const auto copy = [&](Range what) {
    if (what.count() > 0) {
      copy_shared(to + size_bytes(what.begin - range.begin), in_at(what.begin),
                  size_bytes(what.count()));
    }
  };
  switch (kind_) {
    case OperationKind::all_reduce:
    case OperationKind::reduce: {
      // What this member alone reads, from `in`: nothing where members of a host fold first.
      const bool is_alone = members_->hosts == nullptr;
      const Range own = is_alone ? slice(range, members_->rank) : Range{range.begin, range.begin};
      copy({range.begin, own.begin});
      copy({own.end, range.end});
      break;
    }
    case OperationKind::reduce_scatter:
    case OperationKind::scatter:
    case OperationKind::all_to_all:
      return stage_parts(range, to);
    case OperationKind::all_gather:
    case OperationKind::gather:
      copy(within(range, part(members_->rank).count()));
      break;
    case OperationKind::broadcast:
      if (gives()) copy(range);
      break;
    case OperationKind::message:
    case OperationKind::barrier:
      break;
  }
}

/// But what this member takes itself, unless members of its host fold that first.
void Transfer::stage_parts(Range range, std::byte* to) const {
  if (!gives()) return;
  const bool folds_first = members_->hosts != nullptr && reduces(kind_);
  for (int member = 0; member < members_->size; ++member) {
    const Range part = given(members_->rank, member);
    const std::int64_t count = within(range, part.count()).count();
    if ((member == members_->rank && !folds_first) || count == 0) continue;
    copy_shared(to + size_bytes(member * chunk_elements_), in_at(part.begin + range.begin),
                size_bytes(count));
  }
}

}  // namespace tutti
