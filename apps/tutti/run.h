#pragma once

// `tutti run`: starts workers, shows what they write, ends them together, and reports.

#include "run_options.h"

namespace tutti::command {

/// Returns the exit status: 0, that of the worker that failed first, or 128 + signal. Throws
/// Refusal before any worker runs.
int run(const RunOptions& options);

}  // namespace tutti::command
