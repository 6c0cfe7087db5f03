#pragma once

// Updates by a rule that no kernel has. The owner of a tile keeps state that is not in shared
// memory, so it owns the tile for the whole run.
//
// Threads: one. Failure: Mismatch, which ends the run: some tiles may have been updated.

#include "sync/plan/tile_share.h"

namespace tutti {

class TileUpdates {
 public:
  virtual ~TileUpdates() = default;
  /// Updates a touched tile that this worker owns. `gradient` is folded and clipped, of the type of
  /// the master copy, and may be overwritten; learning rates are multiplied by `rate_factor`.
  virtual void update(const ElementRange& tile, void* gradient, double rate_factor) = 0;
};

}  // namespace tutti
