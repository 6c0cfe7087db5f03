#pragma once

// Two step logs, step by step (run/log/step_log.h).
//
// Failure: InvalidArgument where they cannot be compared.

#include "comparison.h"
#include "run/log/step_log_reader.h"

namespace tutti::command {

/// Compares the steps of which both have digests; ends at the first that differs.
Comparison compare_logs(const StepLogFile& a, const StepLogFile& b);

}  // namespace tutti::command
