#pragma once

// What the sum of weighted gradients is divided by, in a DataParallel (DataParallelOptions::divide)
// and in a Trainer (TrainerOptions::divide): docs/update.md#sums-and-means.

namespace tutti {

/// The divisor of the sum of weighted gradients. A leaf is a worker's backward or micro-batch, or a
/// Trainer's shard.
enum class Divide {
  by_weight,        ///< Σ of the weights of all leaves, whether they touched the parameter or not
  by_contributors,  ///< per parameter, Σ of the weights of the leaves that wrote its gradient
  not_at_all,       ///< the sum itself
};

}  // namespace tutti
