#pragma once

// How threads of the host may share a fold: it is cut into tiles, which are element-wise, so that
// no bit depends on who computes which.

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

}  // namespace tutti
