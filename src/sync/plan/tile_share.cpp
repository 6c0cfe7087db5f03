#include "sync/plan/tile_share.h"

#include <algorithm>

namespace tutti {

std::vector<ElementRange> tile_share(const Plan& plan, std::span<const std::uint32_t> parameters,
                                     int rank, int size) {
  std::size_t total = 0;
  for (const auto p : parameters) total += plan.parameters()[p].node_bytes;
  const auto cut = [&](int r) {
    return r == size ? total : total / static_cast<std::size_t>(size) * static_cast<std::size_t>(r);
  };
  const auto mine_begin = cut(rank);
  const auto mine_end = cut(rank + 1);
  std::vector<ElementRange> ranges;
  std::size_t before = 0;  // bytes of the parameters before this one
  for (const auto p : parameters) {
    const auto& entry = plan.parameters()[p];
    if (entry.node_bytes == 0) continue;
    // A cut inside the parameter moves to the begin of its tile, on every worker alike.
    const auto place = [&](std::size_t at) -> std::int64_t {
      if (at <= before) return 0;
      if (at >= before + entry.node_bytes) return entry.spec.count;
      return static_cast<std::int64_t>((at - before) / size_of(entry.node_type)) / kTile * kTile;
    };
    const ElementRange range{p, place(mine_begin), place(mine_end)};
    if (range.begin < range.end) ranges.push_back(range);
    before += entry.node_bytes;
  }
  return ranges;
}

std::vector<ElementRange> tiles_of(const ElementRange& range) {
  std::vector<ElementRange> tiles;
  for (auto begin = range.begin; begin < range.end; begin += kTile) {
    tiles.push_back({range.parameter, begin, std::min(begin + kTile, range.end)});
  }
  return tiles;
}

std::vector<std::size_t> tiles_of_replicas(const Plan& plan, std::size_t logical) {
  std::vector<std::size_t> tiles;
  for (std::size_t l = 0; l < logical; ++l) {
    for (const auto& entry : plan.parameters()) {
      const auto count = entry.spec.is_per_replica ? entry.spec.count : 0;
      tiles.push_back(static_cast<std::size_t>(tiles_of(count)));
    }
  }
  return tiles;
}

}  // namespace tutti
