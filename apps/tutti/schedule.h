#pragma once

// `tutti schedule`: what a pipeline's workers do when, and how much of their time is idle:
// predicted, without a run, with what the activations take; or measured in one.

#include <CLI/CLI.hpp>
#include <string>

#include "measured_pipeline.h"
#include "tutti/pipeline_timeline.h"

namespace tutti::command {

struct ScheduleOptions {
  std::string kind = "1f1b";
  int stages = 0;
  int micro_batches = 0;
  int workers = 0;  ///< 0: one for each stage
  StageCosts costs = {};
  double transfer_ms = 0;
  double activation_mb = 0;
  double weight_half_mb = 0;
  std::string svg = {};           ///< empty: no picture
  bool is_measured = false;       ///< all of the above but `svg` is then left alone
  MeasuredOptions measured = {};  ///< else this is
};

/// Parsing throws Refusal where options of both kinds are given, or too few.
void add_schedule_options(CLI::App& app, ScheduleOptions& options);

/// Prints the timeline, and writes its picture. Refusal for numbers that make no sense, IoError
/// where the picture cannot be written; otherwise as measured_pipeline() has it.
int schedule(const ScheduleOptions& options);

}  // namespace tutti::command
