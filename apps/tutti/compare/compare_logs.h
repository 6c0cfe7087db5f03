#pragma once

// Two step logs, step by step (run/step_log.h).
//
// Failure: InvalidArgument where they cannot be compared.

#include "apps/tutti/compare/comparison.h"
#include "run/step_log_reader.h"

namespace tutti::command {

/// Compares the steps of which both have digests; ends at the first that differs.
Comparison compare_logs(const StepLogFile& a, const StepLogFile& b);

}  // namespace tutti::command
