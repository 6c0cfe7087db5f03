#pragma once

// Which stages of the pipelines of a step hand in each tensor: a parameter's gradient, or a
// buffer's new value. Of each tensor it is one stage in all shards: what two stages have of it is
// summed in two halves, which are not nodes of the canonical tree.
//
// Threads: one. The memory is synchronised by the step protocol: publish() before the step is
// published, judge() and has() afterwards. Failure: OutOfMemory where there is no memory;
// InvalidArgument, alike on all workers, where two stages have a tensor.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sync/nodes/step_memory.h"
#include "sync/step/step_part.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

/// A part of a step, before those that add up what workers have handed in.
class KeeperBoard : public StepPart {
 public:
  /// Of the model's parameters, then its buffers. Keeps references. `name` is the Trainer's, in
  /// errors. Collective.
  KeeperBoard(StepMemory& memory, const WrappedModel& model, const std::string& name);

  /// Forgets the last step.
  void open(const StepFacts& step) override;
  /// That stage of this worker hands the tensor in, for one of its shards.
  void note(std::size_t tensor, int stage);
  void publish() override;
  /// Names the first tensor that two stages hand in.
  void judge(StepFacts& step) override;

  /// Whether a stage of that worker hands the tensor in.
  bool has(int rank, std::size_t tensor) const { return all_.of(rank)[tensor].lowest != 0; }

 private:
  /// Stages, counted from 1; 0: none.
  struct Stages {
    std::uint32_t lowest = 0;
    std::uint32_t highest = 0;
  };
  std::string clash_text(std::size_t tensor, const Stages& stages) const;

  const WrappedModel& model_;
  std::string name_;
  std::vector<Stages> mine_;
  WorkerParts<Section<Stages>> all_;  ///< per worker: its stages, by tensor
};

}  // namespace tutti
