#pragma once

// When each action of a pipeline schedule runs, where every worker takes its next one as soon as
// what it needs of other stages is there. What it needs of its own stage comes before it in the
// worker's list, which check() has seen to.
//
// Threads: any. Failure: none; a schedule whose workers wait for one another ends early.

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "tutti/pipeline_schedule.h"

namespace tutti {

/// Whether the action makes the gradient of its stage's input.
constexpr bool gives_input(StageWork work) {
  return work == StageWork::backward || work == StageWork::backward_input;
}
/// Whether the action finishes the gradients of its stage's parameters.
constexpr bool gives_weights(StageWork work) {
  return work == StageWork::backward || work == StageWork::backward_weight;
}

struct WalkCosts {
  std::function<double(const StageAction&)> duration;
  double transfer = 0;  ///< between two workers; the workers compute meanwhile
};

struct PipelineWalk {
  struct Times {
    double start = 0;
    double end = 0;
  };
  /// By worker, in the order of its actions; shorter than those where the worker waits for ever.
  std::vector<std::vector<Times>> times;
};

PipelineWalk walk(const PipelineSchedule& schedule, const WalkCosts& costs);
/// A forward takes 1, a backward 2, each of its halves 1; transfers nothing.
PipelineWalk walk_in_units(const PipelineSchedule& schedule);

/// What of another stage the action needs: the forward of the stage before, or the backward of the
/// stage behind it. Of a backward the result has both halves, whichever it is.
std::optional<StageAction> need_of(const StageAction& action, int stages);

/// InvalidArgument where the schedule is not one that a pipeline can run.
void check(const PipelineSchedule& schedule);

}  // namespace tutti
