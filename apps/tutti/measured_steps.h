#pragma once

// What the workers of pipelines computed in each step, read from a run's timeline.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/pipeline_schedule.h"

namespace tutti::command {

struct MeasuredCompute {
  StageAction action = {};
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

struct MeasuredStep {
  std::int64_t number = 0;
  std::int64_t start_ns = 0;  ///< of the worker that was last to begin it
  /// By job rank, in order of their starts; of every worker that made the step, which may have
  /// computed nothing.
  std::map<int, std::vector<MeasuredCompute>> workers = {};
};

struct MeasuredTrainer {
  std::string name;
  int stages = 0;
  std::vector<MeasuredStep> steps = {};  ///< in order of their starts
};

/// The Trainers whose steps have computes of stages, by name. Where a step was made again (a
/// checkpoint was loaded), the last time counts. Computes outside of steps are passed over, such
/// as those of a step that was under way when the worker ended. IoError and Corrupt, as
/// each_trace_event() has them.
std::vector<MeasuredTrainer> measured_trainers(const std::string& file);

}  // namespace tutti::command
