#pragma once

// Two checkpoints, tensor by tensor and byte by byte (run/files/checkpoint_store.h).
//
// Failure: InvalidArgument where they cannot be compared. Memory: twice that of the largest tensor.

#include "comparison.h"
#include "run/files/checkpoint_store.h"

namespace tutti::command {

Comparison compare_checkpoints(const Checkpoint& a, const Checkpoint& b);

}  // namespace tutti::command
