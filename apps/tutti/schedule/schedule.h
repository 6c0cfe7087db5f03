#pragma once

// `tutti schedule`: predicts what a pipeline's workers do when, how much of their time is idle, and
// what the activations take.

#include <CLI/CLI.hpp>
#include <string>

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
  std::string svg = {};  ///< empty: no picture
};

void add_schedule_options(CLI::App& app, ScheduleOptions& options);

/// Prints the timeline, and writes its picture. Refusal for numbers that make no sense, IoError
/// where the picture cannot be written.
int schedule(const ScheduleOptions& options);

}  // namespace tutti::command
