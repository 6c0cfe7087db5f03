#pragma once

// The factor of a dynamic loss scale over the steps of a run (tutti/loss_scale.h has its source).
//
// Threads: one. Pure: every worker comes to the same factor from the same steps. Failure: as said.

#include <algorithm>

#include "tutti/loss_scale.h"

namespace tutti {

/// InvalidArgument for numbers that make no sense.
void require_loss_scale(const LossScale& scale);

/// Updates the factor after a step that was applied.
inline void grow(const LossScale& rule, LossScaleState& state) {
  if (!rule.dynamic || ++state.good_steps < rule.grow_after) return;
  state = {std::min(state.factor * rule.growth, rule.maximum), 0};
}

/// Updates the factor after a step whose gradient was not finite: the sequence of good steps is
/// over in any case. Returns false where the factor cannot shrink any more.
inline bool shrink(const LossScale& rule, LossScaleState& state) {
  state.good_steps = 0;
  const double factor = std::max(state.factor * rule.backoff, rule.minimum);
  const bool shrinks = rule.dynamic && factor < state.factor;
  if (shrinks) state.factor = factor;
  return shrinks;
}

}  // namespace tutti
