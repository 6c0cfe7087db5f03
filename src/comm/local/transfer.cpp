#include "comm/local/transfer.h"

#include <algorithm>

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
                     const ControlArena& control) {
  members_ = &members;
  control_ = &control;
  kind_ = operation.kind;
  reduction_ = operation.reduction;
  dtype_ = operation.in.dtype;
  root_ = operation.root;
  element_bytes_ = size_of(dtype_);
  in_ = static_cast<const std::byte*>(operation.in.data);
  out_ = static_cast<std::byte*>(operation.out.data);
  counts_.clear();
  std::int64_t given = operation.in.count;
  extent_ = given;
  if (kind_ == OperationKind::reduce_scatter) extent_ = operation.out.count;
  if (!operation.counts.empty()) {
    counts_.assign(operation.counts.begin(), operation.counts.end());
    given = extent_ = *std::max_element(counts_.begin(), counts_.end());
  }
  contribution_ = size_bytes(given);
}

bool Transfer::gives() const {
  return kind_ != OperationKind::broadcast || members_->rank == root_;
}

void Transfer::assume_staging() {
  std::int64_t room = static_cast<std::int64_t>(kChunkBytes / element_bytes_);
  if (kind_ == OperationKind::reduce_scatter) room /= members_->size;
  chunk_elements_ = std::max(room / kGrain * kGrain, kGrain);
  chunks_ = static_cast<std::uint64_t>((extent_ + chunk_elements_ - 1) / chunk_elements_);
}

void Transfer::resolve(std::uint64_t sequence, const RegionTable& regions,
                       std::uint64_t held_by_all) {
  const auto is_shared = [&](const Location& at) {
    return at.in_region() && ((held_by_all >> at.region) & 1U) != 0;
  };
  anyone_stages_ = false;
  anyone_collects_ = false;
  others_collect_ = false;
  in_place_.resize(static_cast<std::size_t>(members_->size));
  out_place_.resize(static_cast<std::size_t>(members_->size));
  for (int member = 0; member < members_->size; ++member) {
    const auto m = static_cast<std::size_t>(member);
    const Arrival& arrival = control_->arrival(member, sequence);
    in_place_[m] = is_shared(arrival.in) ? regions.address(member, arrival.in) : nullptr;
    out_place_[m] = is_shared(arrival.out) ? regions.address(member, arrival.out) : nullptr;
    const bool gives = kind_ != OperationKind::broadcast || member == root_;
    if (gives && in_place_[m] == nullptr) anyone_stages_ = true;
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
  if (kind_ == OperationKind::reduce && member != root_) return false;
  if (kind_ != OperationKind::all_reduce && kind_ != OperationKind::reduce) return false;
  return out_place_[static_cast<std::size_t>(member)] == nullptr;
}

bool Transfer::all_see_all_work() const {
  return kind_ == OperationKind::all_reduce || kind_ == OperationKind::reduce;
}

bool Transfer::must_see_all_work() const {
  if (all_see_all_work()) return true;
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

Transfer::Range Transfer::part(int member) const {
  if (counts_.empty()) return {member * extent_, (member + 1) * extent_};
  std::int64_t begin = 0;
  for (int m = 0; m < member; ++m) begin += counts_[static_cast<std::size_t>(m)];
  return {begin, begin + counts_[static_cast<std::size_t>(member)]};
}

std::size_t Transfer::staged_bytes(std::uint64_t chunk) const {
  if (!gives()) return 0;
  const Range range = chunk_range(chunk);
  if (kind_ == OperationKind::reduce_scatter) {
    return size_bytes((members_->size - 1) * chunk_elements_ + range.count());
  }
  if (kind_ == OperationKind::all_gather) {
    return size_bytes(
        Range{range.begin, std::min(range.end, part(members_->rank).count())}.count());
  }
  return size_bytes(range.count());
}

Transfer::Piece Transfer::result_piece(std::uint64_t chunk) const {
  if (!others_collect_) return {};
  const Range range = chunk_range(chunk);
  const Range own = slice(range, members_->rank);
  return {size_bytes(own.begin - range.begin), size_bytes(own.count())};
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
      const Range own = slice(range, members_->rank);  // read by this member alone, from `in`
      copy({range.begin, own.begin});
      copy({own.end, range.end});
      break;
    }
    case OperationKind::reduce_scatter:
      for (int member = 0; member < members_->size; ++member) {
        if (member == members_->rank) continue;
        copy_shared(to + size_bytes(member * chunk_elements_),
                    in_at(part(member).begin + range.begin), size_bytes(range.count()));
      }
      break;
    case OperationKind::all_gather: {
      const Range own = part(members_->rank);
      copy({range.begin, std::min(range.end, own.count())});
      break;
    }
    case OperationKind::broadcast:
      if (gives()) copy(range);
      break;
    case OperationKind::barrier:
      break;
  }
}

void Transfer::work(std::uint64_t chunk, std::uint64_t half) const {
  const Range range = chunk_range(chunk);
  switch (kind_) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
      return work_reduce(range, half);
    case OperationKind::reduce_scatter:
      return work_reduce_scatter(range, half);
    case OperationKind::all_gather:
      return work_all_gather(range, half);
    case OperationKind::broadcast:
      return work_broadcast(range, half);
    case OperationKind::barrier:
      return;
  }
}

void Transfer::work_reduce(Range range, std::uint64_t half) const {
  const Range own = slice(range, members_->rank);
  if (own.count() == 0) return;
  const std::size_t in_chunk = size_bytes(own.begin - range.begin);
  std::array<const void*, kMaxWorkers> sources;
  std::array<void*, kMaxWorkers + 1> destinations;
  std::size_t destination_count = 0;
  for (int member = 0; member < members_->size; ++member) {
    const auto m = static_cast<std::size_t>(member);
    const bool self = member == members_->rank;
    if (self) {
      sources[m] = in_at(own.begin);
    } else {
      sources[m] = in_place_[m] != nullptr ? in_place_[m] + size_bytes(own.begin)
                                           : control_->staging(member, half) + in_chunk;
    }
    if (kind_ == OperationKind::reduce && member != root_) continue;
    if (self) {
      destinations[destination_count++] = out_at(own.begin);
    } else if (out_place_[m] != nullptr) {
      destinations[destination_count++] = out_place_[m] + size_bytes(own.begin);
    }
  }
  if (others_collect_) {
    destinations[destination_count++] = control_->results(members_->rank, half) + in_chunk;
  }
  fold_into(sources, destinations.data(), destination_count, own.count());
}

void Transfer::work_reduce_scatter(Range range, std::uint64_t half) const {
  if (range.count() == 0) return;
  const int rank = members_->rank;
  const std::int64_t begin = part(rank).begin + range.begin;
  std::array<const void*, kMaxWorkers> sources;
  for (int member = 0; member < members_->size; ++member) {
    const auto m = static_cast<std::size_t>(member);
    if (member == rank) {
      sources[m] = in_at(begin);
    } else {
      sources[m] = in_place_[m] != nullptr
                       ? in_place_[m] + size_bytes(begin)
                       : control_->staging(member, half) + size_bytes(rank * chunk_elements_);
    }
  }
  void* const destination = out_at(range.begin);
  fold_into(sources, &destination, 1, range.count());
}

void Transfer::work_all_gather(Range range, std::uint64_t half) const {
  for (int member = 0; member < members_->size; ++member) {
    const auto m = static_cast<std::size_t>(member);
    const Range whole = part(member);
    const std::size_t bytes =
        size_bytes(Range{range.begin, std::min(range.end, whole.count())}.count());
    if (bytes == 0) continue;
    const std::byte* from = control_->staging(member, half);
    if (member == members_->rank) {
      from = in_at(range.begin);
    } else if (in_place_[m] != nullptr) {
      from = in_place_[m] + size_bytes(range.begin);
    }
    std::byte* const to = out_at(whole.begin + range.begin);
    if (to != from) copy_shared(to, from, bytes);
  }
}

void Transfer::work_broadcast(Range range, std::uint64_t half) const {
  if (members_->rank == root_ || range.count() == 0) return;
  const std::byte* const given = in_place_[static_cast<std::size_t>(root_)];
  copy_shared(out_at(range.begin),
              given != nullptr ? given + size_bytes(range.begin) : control_->staging(root_, half),
              size_bytes(range.count()));
}

void Transfer::collect(std::uint64_t chunk, std::uint64_t half) const {
  if (!anyone_collects_ || !collects(members_->rank)) return;
  const Range range = chunk_range(chunk);
  for (int owner = 0; owner < members_->size; ++owner) {
    const Range folded = slice(range, owner);
    if (owner == members_->rank || folded.count() == 0) continue;
    copy_shared(out_at(folded.begin),
                control_->results(owner, half) + size_bytes(folded.begin - range.begin),
                size_bytes(folded.count()));
  }
}

}  // namespace tutti
