#pragma once

// One pipeline in one step of a run, as the run's timeline has it.

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/pipeline_timeline.h"

namespace tutti::command {

struct MeasuredOptions {
  std::string file = {};                    ///< of `tutti run --profile`
  std::optional<std::int64_t> step = {};    ///< the last complete one unless given
  std::optional<std::string> trainer = {};  ///< needed where several have pipelines
  int pipeline = 0;                         ///< neighbouring ranks form one, counted from 0
};

/// A step is complete when all its pipelines have computed every micro-batch on every stage, to the
/// end of its backward. One that is not is drawn as far as it came, where the timeline has others
/// that show which ranks form a pipeline. Refusal for what the timeline does not have,
/// InvalidArgument where it has no pipeline or none that can be drawn, IoError and Corrupt as
/// each_trace_event() has them.
PipelineTimeline measured_pipeline(const MeasuredOptions& options);

}  // namespace tutti::command
