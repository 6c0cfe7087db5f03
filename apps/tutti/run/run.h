#pragma once

// `tutti run`: starts workers, shows what they write, ends them together, reports, and
// starts all again if it was asked to.

#include "apps/tutti/run/run_options.h"

namespace tutti::command {

/// Returns the exit status: 0, that of the worker that failed first in the last attempt, or 128 +
/// signal. Throws Refusal when workers cannot be started.
int run(const RunOptions& options);

}  // namespace tutti::command
