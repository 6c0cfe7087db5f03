#pragma once

// Two checkpoints, tensor by tensor and byte by byte (run/checkpoint_store.h).
//
// Failure: InvalidArgument where they cannot be compared. Memory: twice that of the largest tensor.

#include "apps/tutti/compare/comparison.h"
#include "run/checkpoint_store.h"

namespace tutti::command {

Comparison compare_checkpoints(const Checkpoint& a, const Checkpoint& b);

}  // namespace tutti::command
