#pragma once

// Which stages of the pipelines of a step hand in each tensor: a parameter's gradient, or a
// buffer's new value. Of each tensor it is one stage in all shards: what two stages have of it is
// summed in two halves, which are not nodes of the canonical tree.
//
// Threads: one. The memory is synchronised by the step protocol: publish() before the step is
// published, clash() and has() afterwards. Failure: OutOfMemory where there is no memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sync/nodes/step_memory.h"

namespace tutti {

class KeeperBoard {
 public:
  /// Of so many tensors. Collective.
  KeeperBoard(StepMemory& memory, std::size_t tensors);

  /// Forgets the last step.
  void open();
  /// That stage of this worker hands the tensor in, for one of its shards.
  void note(std::size_t tensor, int stage);
  void publish();

  /// Whether a stage of that worker hands the tensor in.
  bool has(int rank, std::size_t tensor) const { return all_.of(rank)[tensor].lowest != 0; }
  /// A tensor that two stages hand in.
  struct Clash {
    std::size_t tensor = 0;
    int one = 0;  ///< stage
    int other = 0;
  };
  /// The first one over the shards of all workers: alike on all of them.
  std::optional<Clash> clash() const;

 private:
  /// Stages, counted from 1; 0: none.
  struct Stages {
    std::uint32_t lowest = 0;
    std::uint32_t highest = 0;
  };

  std::vector<Stages> mine_;
  WorkerParts<Section<Stages>> all_;  ///< per worker: its stages, by tensor
};

}  // namespace tutti
