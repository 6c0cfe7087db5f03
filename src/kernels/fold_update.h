#pragma once

// Fold and update in one sweep: the folded gradient never leaves the first-level cache. The bits
// are those of fold() to a gradient, then update(), then one rounding of the parameter.
//
// Threads: pure functions on disjoint memory. Failure: none; arguments are checked by callers
// (TUTTI_CHECK on impossible combinations).

#include "kernels/fold.h"
#include "kernels/update.h"

namespace tutti {

/// A fold and an update in one sweep over a run of elements of one parameter. `fold` is given
/// without destinations and `target` without a gradient; both have the same count, and `fold` the
/// type of `target` on both sides.
struct FoldUpdate {
  Fold fold;
  UpdateTarget target;  ///< of a 16-bit parameter: its float32 master copy
  PreparedUpdate update;
  /// A second destination of the updated parameter, rounded once to nearest-even; may be null.
  void* rounded = nullptr;
  DType rounded_type = DType::bfloat16;  ///< a 16-bit float; `target` is float32 then
};
void fold_update(const FoldUpdate& work);

}  // namespace tutti
