#pragma once

// Who works on which elements of a model: equal shares of the bytes, cut at tiles.
//
// Pure function.

#include <cstdint>
#include <span>
#include <vector>

#include "sync/plan/plan.h"

namespace tutti {

/// Elements of a tile: what one worker owns of a parameter are whole tiles, so that nothing that is
/// computed per tile depends on the number of workers.
inline constexpr std::int64_t kTile = 4096;
/// The number of tiles of so many elements; the last one may be shorter.
constexpr std::int64_t tiles_of(std::int64_t elements) { return (elements + kTile - 1) / kTile; }

/// Elements [begin, end) of a parameter.
struct ElementRange {
  std::uint32_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The share of worker `rank` of `size` in the given parameters. Every element of them is in one
/// worker's share.
std::vector<ElementRange> tile_share(const Plan& plan, std::span<const std::uint32_t> parameters,
                                     int rank, int size);

/// The range, whose begin is a tile's, cut into tiles; the last one may be shorter.
std::vector<ElementRange> tiles_of(const ElementRange& range);
/// For each of `logical` workers and then each parameter, the number of tiles; 0 for parameters
/// that they share.
std::vector<std::size_t> tiles_of_replicas(const Plan& plan, std::size_t logical);

}  // namespace tutti
