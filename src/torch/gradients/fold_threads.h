#pragma once

// Threads of the host that fold the gradients of a model on a device: the calling one, and threads
// of libtorch's inter-op pool. (Its other pool, at::parallel_for(), is OpenMP's, with which
// Tutti is not compiled, and has the number of threads that results of operators depend on.)
//
// Threads: any.

#include "comm/group_state.h"
#include "sync/nodes/for_tiles.h"

namespace tutti {

/// How many a worker has: the processors that its host has for each of its workers, or torch's
/// intra-op threads where those are more; at most torch's inter-op threads.
int fold_threads(const GroupState& group);

/// The calling thread folds tiles, as do up to `threads` - 1 others that come in time. It waits for
/// none that has not begun. One thread: null.
ForTiles tiles_on(int threads);

}  // namespace tutti
