#pragma once

// The results of a run's steps as curves for TensorBoard: "step/loss", "step/learning_rate" (with
// several groups of parameters "step/learning_rate/0", …, the last one that of no group's),
// "step/gradient_norm", "step/loss_scale", "step/weight"; of a step that was dropped,
// "step/dropped"; "speed/steps_per_second" and "speed/weight_per_second", means since the values
// before; "metrics/NAME" of each other metric that is a number.
//
// Threads: one at a time. Failure: that of Files.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "run/log/event_file.h"
#include "run/log/step_log.h"

namespace tutti {

class StepCurves {
 public:
  /// `rates`: learning rates of the groups, without a schedule. Of a run of which `steps` are over,
  /// whose later values in the file's folder do not count any more: a load needs a new object.
  StepCurves(std::shared_ptr<EventFile> file, std::vector<double> rates, std::int64_t steps);

  void add(std::int64_t step, const StepFigures& figures);
  /// A step whose values are not asked for.
  void pass(double weight) { weight_ += weight; }

 private:
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<EventFile> file_;
  std::vector<double> rates_;
  std::int64_t last_step_;
  double weight_ = 0;  ///< of the steps since
  Clock::time_point last_time_ = Clock::now();
  bool is_first_ = true;
};

}  // namespace tutti
