#pragma once

// Updates by a rule that no kernel has. Whoever owns a tile keeps more than bytes of it, so the
// owner stays the same for the whole run.
//
// Threads: one. Failure: Mismatch, which ends the run: some tiles may have been updated.

#include "sync/plan/tile_share.h"

namespace tutti {

class TileUpdates {
 public:
  virtual ~TileUpdates() = default;
  /// A touched tile that this worker owns. `gradient` is folded and clipped, of the type of the
  /// master copy, and may be overwritten; learning rates are multiplied by `rate_factor`.
  virtual void update(const ElementRange& tile, void* gradient, double rate_factor) = 0;
};

}  // namespace tutti
