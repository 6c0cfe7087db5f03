#pragma once

// When each worker of a pipeline computes what: as simulate() predicts it from the costs of the
// stages, or as a run has measured it. A timeline knows the bubble, the memory that activations
// take, and shows itself as text and as a picture.
//
// Times are in milliseconds from the first start on, memory in bytes. The bubble is the idle time
// of the workers over all their time, from 0 to the makespan.
//
// Threads: values; safe anywhere. Failure: InvalidArgument.

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/pipeline_schedule.h"

namespace tutti {

/// What one micro-batch costs on one stage. A whole backward takes the sum of both halves.
struct StageCosts {
  double forward_ms = 1;
  double backward_input_ms = 1;
  double backward_weight_ms = 1;
  /// Kept from the begin of forward to the end of the backward, or of its input's half.
  std::uint64_t activation_bytes = 0;
  /// Kept from then on to the end of the weights' half, where the halves are apart.
  std::uint64_t weight_half_bytes = 0;
};

struct PipelineCosts {
  std::vector<StageCosts> stages = {};
  /// From one worker to another; both compute meanwhile.
  double transfer_ms = 0;
  /// All stages cost the same.
  static PipelineCosts equal(int stages, const StageCosts& costs = {}, double transfer_ms = 0);
};

/// A compute and when it ran.
struct TimedAction {
  int worker = 0;
  StageAction action = {};
  double start_ms = 0;
  double end_ms = 0;
};

struct StageUse {
  int worker = 0;
  /// Micro-batches from the begin of forward to the end of the backward or its input's half: at the
  /// peak.
  int peak_in_flight = 0;
  /// The same, with those that wait for their weights' half.
  int peak_held = 0;
};

struct WorkerUse {
  double busy_ms = 0;
  double bubble = 0;             ///< its idle share of the makespan
  std::uint64_t peak_bytes = 0;  ///< kept for all its stages, by the bytes of StageCosts
};

class PipelineTimeline {
 public:
  /// Measured actions come in any order and from any zero on: the first start becomes 0. Bytes are
  /// those of `costs`, by stage; without them all are 0. InvalidArgument where there is nothing,
  /// for what ends before it starts, for a worker's computes that overlap, and for a stage without
  /// costs.
  PipelineTimeline(std::string title, std::vector<TimedAction> actions,
                   const std::vector<StageCosts>& costs = {});

  const std::string& title() const { return title_; }
  /// By worker, then by start.
  const std::vector<TimedAction>& actions() const { return actions_; }
  double makespan_ms() const { return makespan_ms_; }
  /// The idle share of all workers' time together, in 0 … 1.
  double bubble() const { return bubble_; }
  /// By worker.
  const std::vector<WorkerUse>& workers() const { return workers_; }
  /// By stage.
  const std::vector<StageUse>& stages() const { return stages_; }

  /// A row of characters per worker, and a table of times and memory:
  ///
  ///   worker 0 |F0 F1 F2 ......B0--- F3 …
  ///
  /// The number is that of the micro-batch, a letter behind it that of the stage, where a worker
  /// has several; "." is idle. 160 columns at most: what is too narrow for its number has none.
  std::string text() const;
  /// The same as an SVG picture.
  std::string picture() const;

 private:
  std::string title_;
  std::vector<TimedAction> actions_;
  std::vector<WorkerUse> workers_;
  std::vector<StageUse> stages_;
  double makespan_ms_ = 0;
  double bubble_ = 0;
};

/// Every worker begins its next action as soon as the worker is free and what the action needs has
/// come. InvalidArgument for costs that are negative or not finite, or of another number of stages.
PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace tutti
