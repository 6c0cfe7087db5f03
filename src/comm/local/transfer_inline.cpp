// The one-wait path of Transfer: every member wrote all it gives into its inline buffer before it
// arrived, so that each folds or fetches what it wants alone.

#include <algorithm>

#include "comm/local/copy.h"
#include "comm/local/transfer.h"
#include "kernels/fold.h"
#include "kernels/fold_schedule.h"
#include "kernels/wide_fold.h"

namespace tutti {
namespace {

/// A fold over more values than one program takes: members of several hosts, where it is not what
/// takes time. Floats of 16 bits are folded in float32 and rounded once, as by fold().
void fold_many(const Fold& work, std::span<const Block> leaves, std::int64_t total) {
  if (!is_floating(work.source_type) || size_of(work.source_type) != 2) {
    return wide_fold(leaves, total, work);
  }
  constexpr std::int64_t kPiece = 256;
  const std::size_t each = size_of(work.source_type);
  std::vector<float> wide(leaves.size() * kPiece);
  std::vector<const void*> sources(leaves.size());
  std::vector<void*> destinations(work.destinations.size());
  for (std::int64_t begin = 0; begin < work.count; begin += kPiece) {
    Fold piece = work;
    piece.source_type = DType::float32;
    piece.count = std::min(kPiece, work.count - begin);
    const std::size_t skip = static_cast<std::size_t>(begin) * each;
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      float* const to = wide.data() + k * kPiece;
      scale_into(to, DType::float32, static_cast<const std::byte*>(work.sources[k]) + skip,
                 work.source_type, piece.count, 1);
      sources[k] = to;
    }
    std::ranges::transform(work.destinations, destinations.begin(),
                           [&](void* to) { return static_cast<std::byte*>(to) + skip; });
    piece.sources = sources;
    piece.destinations = destinations;
    wide_fold(leaves, total, piece);
  }
}

}  // namespace

void Transfer::fold_into(const std::array<const void*, kMaxWorkers>& sources,
                         void* const* destinations, std::size_t destination_count,
                         std::int64_t count) const {
  // As many members as need more than one program are on several hosts.
  const HostLayout* const hosts = members_->hosts;
  fold_values(
      {.program = &members_->program,
       .divisor = divisor_of(reduction_, members_->size),
       .sources = {sources.data(), static_cast<std::size_t>(members_->size)},
       .destinations = {destinations, destination_count},
       .count = count},
      hosts != nullptr ? std::span<const Block>(hosts->leaves.present) : std::span<const Block>());
}

void Transfer::fold_values(Fold work, std::span<const Block> present) const {
  work.reduction = reduction_ == Reduction::mean ? Reduction::sum : reduction_;
  work.source_type = dtype_;
  work.result_type = dtype_;
  if (work.sources.size() > kMaxSources) return fold_many(work, present, members_->size);
  fold(work);
}

void Transfer::write_inline() const {
  if (!gives()) return;
  std::size_t bytes = contribution_;
  if (!gives_parts(kind_) && !counts_.empty()) bytes = size_bytes(part(members_->rank).count());
  if (bytes != 0) copy_shared(control_->inline_buffer(members_->rank, sequence_), in_, bytes);
}

void Transfer::finish_inline() const {
  const int rank = members_->rank;
  if (!takes(rank)) return;
  const auto inline_of = [this](int member) { return control_->inline_buffer(member, sequence_); };
  switch (kind_) {
    case OperationKind::reduce:
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter: {
      const Range own = kind_ == OperationKind::reduce_scatter ? part(rank) : Range{0, extent_};
      if (own.count() == 0) return;
      std::array<const void*, kMaxWorkers> sources;
      for (int member = 0; member < members_->size; ++member) {
        sources[static_cast<std::size_t>(member)] = inline_of(member) + size_bytes(own.begin);
      }
      void* const destination = out_;
      return fold_into(sources, &destination, 1, own.count());
    }
    case OperationKind::all_gather:
    case OperationKind::gather:
      for (int member = 0; member < members_->size; ++member) {
        const Range whole = part(member);
        std::byte* const to = out_at(whole.begin);
        if (whole.count() == 0 || (member == rank && to == in_)) continue;
        copy_shared(to, inline_of(member), size_bytes(whole.count()));
      }
      return;
    case OperationKind::broadcast:
      if (rank != root_ && extent_ > 0) copy_shared(out_, inline_of(root_), contribution_);
      return;
    case OperationKind::scatter:
    case OperationKind::all_to_all:
      for (int giver = 0; giver < members_->size; ++giver) {
        const Range whole = given(giver, rank);
        if (!gives(giver) || whole.count() == 0) continue;
        const std::byte* const from =
            giver == rank ? in_at(whole.begin) : inline_of(giver) + size_bytes(whole.begin);
        std::byte* const to = out_at(taken(giver, rank).begin);
        if (to != from) copy_shared(to, from, size_bytes(whole.count()));
      }
      return;
    case OperationKind::message:
    case OperationKind::barrier:
      return;
  }
}

}  // namespace tutti
