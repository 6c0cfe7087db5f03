#pragma once

// A fold over any number of nodes, where fold() takes at most kMaxSources: subtree by subtree, in
// pieces that stay in a cache. Many workers with ragged ranges have that many nodes.
//
// Threads: pure functions on disjoint memory. Failure: as fold().

#include <cstdint>
#include <span>

#include "kernels/fold.h"
#include "kernels/fold_program.h"

namespace tutti {

/// The tree over `total` leaves of which the given blocks are present, ascending; work.sources are
/// in their order, work.program is not looked at. The bits of fold() with the whole program.
void wide_fold(std::span<const Block> present, std::int64_t total, const Fold& work);

}  // namespace tutti
