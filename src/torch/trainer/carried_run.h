#pragma once

// What a Trainer's Run hands to the Run that takes its place: as a checkpoint of what ends with it,
// in rank 0's memory. The same parts write and restore it as save() and load() do.
//
// Threads: one. Failure: that of RunPart, on all workers alike.

#include <cstdint>
#include <functional>

#include "run/files/memory_files.h"
#include "run/state/run_state.h"
#include "torch/run/between_steps.h"

namespace tutti {

class CarriedRun {
 public:
  /// Takes it from `state`, after `steps` steps. Collective.
  CarriedRun(const BetweenSteps& between, const RunState& state, std::int64_t steps);
  /// Gives it to the `state` of the Run that has taken the place of the other. `spread` brings what
  /// rank 0 has read to whoever has it too. Collective.
  void restore(const BetweenSteps& between, const RunState& state,
               const std::function<void()>& spread) const;

 private:
  std::int64_t steps_;
  std::shared_ptr<MemoryFiles> files_ = std::make_shared<MemoryFiles>();  ///< rank 0 fills them
};

}  // namespace tutti
