#pragma once

// The mean of what the shards of a step left in the model's floating-point buffers (running
// statistics), folded along the tree over the shards that ran. Small: every worker folds all of it.
// A buffer that no shard changed keeps its bytes: a mean of equal values may differ from them by a
// rounding, and their sum may overflow.
//
// Threads: one. The memory is synchronised by the step protocol: take() before the step is
// published, barrier() and mean() before it is complete. Failure: OutOfMemory when there is no
// memory.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sync/nodes/node_store.h"
#include "sync/nodes/slice_fold.h"
#include "sync/nodes/step_memory.h"

namespace tutti {

class BufferMean {
 public:
  /// No node of a worker reaches across one of the `cuts`. Collective.
  BufferMean(StepMemory& memory, std::vector<TensorSpec> buffers, std::vector<std::int64_t> cuts,
             std::size_t logical_workers, int workers_per_shard, const std::string& name);

  /// A step in which this worker's first shard is `first`.
  void open(std::int64_t first);
  /// The buffers after a shard of that logical worker that ran, and `before` it, dense, in the
  /// order of the specs; null where another one of the workers that compute the shard has it.
  void take(std::size_t logical, std::span<const void* const> buffers,
            std::span<const void* const> before);
  /// A shard that did not run.
  void skip();
  /// Publishes this worker's nodes, after its last shard.
  void publish();
  /// Collects the nodes of all, once all have published. mean() follows.
  void barrier();
  /// The published nodes, in the order of shards, over which means are taken.
  std::span<const HeldNode> nodes() const { return nodes_.held(); }
  /// Whether some shard of that logical worker left other bytes in the buffer than it found.
  bool changed(std::size_t buffer, std::size_t logical) const {
    return changed_[logical * buffers() + buffer] != 0;
  }
  /// … of any logical worker.
  bool changed(std::size_t buffer) const;
  /// `to` becomes the mean of that buffer over the shards of these nodes; nothing where none ran.
  void mean(std::size_t buffer, NodeRange nodes, void* to);

 private:
  std::size_t buffers() const { return nodes_.plan().parameters().size(); }

  NodeStore nodes_;  ///< a buffer is a parameter of its plan
  SliceFold slices_;
  /// By logical worker and buffer, whether shards changed it: of each worker, and here of this one,
  /// after barrier() of all.
  WorkerParts<Section<std::uint8_t>> changes_;
  std::vector<std::uint8_t> changed_;
};

}  // namespace tutti
