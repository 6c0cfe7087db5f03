#pragma once

// How threads of the host may share a fold, or an update: it is cut into tiles, which are
// element-wise, so that no bit depends on who computes which.

#include <algorithm>
#include <cstdint>
#include <functional>

namespace tutti {

/// Elements of a tile of a fold: 256 KiB of float32.
inline constexpr std::int64_t kFoldTile = std::int64_t{1} << 16;

/// Calls `fold_tile` once for each tile from 0 to `tiles` - 1, in any order and on any threads, and
/// returns when all calls have returned; throws what one of them threw. May be called by several
/// threads at a time. Null: the calling thread folds everything.
using ForTiles =
    std::function<void(std::int64_t tiles, const std::function<void(std::int64_t)>& fold_tile)>;

/// Calls `work` with parts [begin, end) of so many elements: tiles, by `for_tiles`; or all at once.
template <class Work>
void in_fold_tiles(const ForTiles& for_tiles, std::int64_t elements, const Work& work) {
  if (!for_tiles || elements <= kFoldTile) return work(0, elements);
  for_tiles((elements + kFoldTile - 1) / kFoldTile, [&](std::int64_t tile) {
    work(tile * kFoldTile, std::min((tile + 1) * kFoldTile, elements));
  });
}

}  // namespace tutti
