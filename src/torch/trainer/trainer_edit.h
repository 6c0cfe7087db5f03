#pragma once

// Trainer::edit(): the program changes parameters and buffers.
//
// Threads: one. Failure: what `change` throws on rank 0; its changes up to then count.

#include <exception>
#include <functional>

#include "torch/run/between_steps.h"
#include "torch/trainer/trained_model.h"

namespace tutti {

/// Runs `change` on rank 0; all workers get the values that it leaves. Values that the program has
/// written before are taken over as well. Returns the exception of `change` on rank 0, and an error
/// that names it on the others. `check` has to hold on all of them. What closures have spoiled is
/// taken over only where `change` writes it. Collective.
std::exception_ptr edit_by_hand(const TrainedModel& trained, const BetweenSteps& between,
                                const std::function<void()>& change,
                                const std::function<void()>& check);

}  // namespace tutti
