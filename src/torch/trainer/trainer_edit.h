#pragma once

// Trainer::edit(): parameters and buffers that the program changes by hand.
//
// Threads: one. Failure: what `change` throws on rank 0; what it has left then counts as well.

#include <exception>
#include <functional>

#include "torch/run/between_steps.h"
#include "torch/trainer/trained_model.h"

namespace tutti {

/// Runs `change` on rank 0; all workers have what it left. What was written by hand before is taken
/// over with the rest. Returns what `change` threw there, and what says so elsewhere. Collective.
std::exception_ptr edit_by_hand(const TrainedModel& trained, const BetweenSteps& between,
                                const std::function<void()>& change);

}  // namespace tutti
