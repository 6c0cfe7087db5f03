// What each member makes of a chunk that lies in shared memory: it folds its slice of it, or
// fetches what is for it.

#include "comm/local/copy.h"
#include "comm/local/transfer.h"

namespace tutti {

void Transfer::work(std::uint64_t chunk, std::uint64_t half) const {
  const Range range = chunk_range(chunk);
  switch (kind_) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
      return work_reduce(range, half);
    case OperationKind::reduce_scatter:
      return work_reduce_scatter(range, half);
    case OperationKind::all_gather:
    case OperationKind::gather:
      return work_gather(range, half);
    case OperationKind::broadcast:
      return work_broadcast(range, half);
    case OperationKind::scatter:
    case OperationKind::all_to_all:
      return work_exchange(range, half);
    case OperationKind::message:
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
  const int rank = members_->rank;
  const std::int64_t count = within(range, part(rank).count()).count();
  if (count == 0) return;
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
  fold_into(sources, &destination, 1, count);
}

void Transfer::work_gather(Range range, std::uint64_t half) const {
  if (!takes(members_->rank)) return;
  for (int member = 0; member < members_->size; ++member) {
    const auto m = static_cast<std::size_t>(member);
    const Range whole = part(member);
    const std::size_t bytes = size_bytes(within(range, whole.count()).count());
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

void Transfer::work_exchange(Range range, std::uint64_t half) const {
  const int rank = members_->rank;
  for (int giver = 0; giver < members_->size; ++giver) {
    const Range part = given(giver, rank);
    const std::size_t bytes = size_bytes(within(range, part.count()).count());
    if (!gives(giver) || bytes == 0) continue;
    const std::byte* from = in_place_[static_cast<std::size_t>(giver)];
    if (giver == rank) {
      from = in_at(part.begin + range.begin);
    } else if (from != nullptr) {
      from += size_bytes(part.begin + range.begin);
    } else {
      from = control_->staging(giver, half) + size_bytes(rank * chunk_elements_);
    }
    std::byte* const to = out_at(taken(giver, rank).begin + range.begin);
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
