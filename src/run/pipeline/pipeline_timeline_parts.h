#pragma once

// What the text and the picture of a pipeline's timeline have in common.
//
// Threads: any. Failure: none.

#include <string>
#include <vector>

#include "tutti/pipeline_timeline.h"

namespace tutti {

/// By worker, the stages that it computes, in ascending order.
std::vector<std::vector<int>> stages_by_worker(const PipelineTimeline& timeline);
/// The place of the action's stage among those of its worker.
int place_of(const TimedAction& timed, const std::vector<std::vector<int>>& stages);
/// Whether any action is a half of a backward.
bool has_halves(const PipelineTimeline& timeline);

}  // namespace tutti
