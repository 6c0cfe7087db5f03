#include "sync/step/array_source.h"

#include <utility>

#include "kernels/norm.h"
#include "sync/nodes/slice_fold.h"

namespace tutti {

static_assert(kTile == kNormBlock && kFoldTile % kTile == 0,
              "owners, and threads, have whole blocks of a norm");

ArraySource::ArraySource(NodeStore& nodes, std::vector<std::uint32_t> parameters)
    : nodes_(nodes), parameters_(std::move(parameters)), tile_(kTile * sizeof(double)) {}

std::vector<ElementRange> ArraySource::shares(std::span<const std::uint32_t> parameters,
                                              int rank) const {
  return touched_share(nodes_, parameters, rank);
}

void ArraySource::in_tiles(const ElementRange& range, bool counts, const Take& take) {
  for (const auto& tile : tiles_of(range)) {
    fold_to(tile, tile_.data(), counts);
    take(tile, tile_.data());
  }
}

void ArraySource::fold(const ElementRange& range, const Take& take) { in_tiles(range, true, take); }

void ArraySource::read(const ElementRange& range, const Take& take) {
  in_tiles(range, false, take);
}

std::size_t ArraySource::norm_blocks(std::uint32_t parameter) const {
  return static_cast<std::size_t>(tiles_of(entry_of(parameter).spec.count));
}

std::byte* ArraySource::kept_at(int rank, const ElementRange& range) const {
  return nodes_.sum_place(nodes_.team().member(rank), range.parameter) +
         static_cast<std::size_t>(range.begin) * size_of(entry_of(range.parameter).node_type);
}

/// The sum may take the place of the owner's own node: no other worker reads the owner's elements
/// there.
void ArraySource::keep(std::span<const ElementRange> owned, const Squares& squares) {
  for (const auto& range : owned) {
    auto* const to = kept_at(nodes_.team().rank, range);
    fold_to(range, to, true);
    if (!squares) continue;
    const auto type = entry_of(range.parameter).node_type;
    const auto blocks =
        squares(range.parameter).subspan(static_cast<std::size_t>(range.begin / kTile));
    in_fold_tiles(
        nodes_.for_tiles(), range.end - range.begin, [&](std::int64_t begin, std::int64_t end) {
          squares_of_blocks(to + static_cast<std::size_t>(begin) * size_of(type), type, end - begin,
                            blocks.subspan(static_cast<std::size_t>(begin / kTile),
                                           static_cast<std::size_t>(tiles_of(end - begin))));
        });
  }
}

void ArraySource::kept(int rank, const ElementRange& range, const Take& take) const {
  for (const auto& tile : tiles_of(range)) take(tile, kept_at(rank, tile));
}

}  // namespace tutti
