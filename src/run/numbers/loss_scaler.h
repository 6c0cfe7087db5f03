#pragma once

// The factor of a dynamic loss scale over the steps of a run (tutti/trainer.h has its source).
//
// Threads: one. Pure: every worker comes to the same factor from the same steps. Failure: none.

#include <algorithm>
#include <cstdint>

namespace tutti {

struct LossScaleRule {
  bool dynamic = false;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t grow_after = 2000;
  double minimum = 1;
  double maximum = 1;
};

/// The state of the factor, which checkpoints contain.
struct LossScaleState {
  double factor = 1;
  std::int64_t good_steps = 0;  ///< in succession, since it last changed or a step was not
};

/// Updates the factor after a step that was applied.
inline void grow(const LossScaleRule& rule, LossScaleState& state) {
  if (!rule.dynamic || ++state.good_steps < rule.grow_after) return;
  state = {std::min(state.factor * rule.growth, rule.maximum), 0};
}

/// Updates the factor after a step whose gradient was not finite: the sequence of good steps is
/// over in any case. Returns false where the factor cannot shrink any more.
inline bool shrink(const LossScaleRule& rule, LossScaleState& state) {
  state.good_steps = 0;
  const double factor = std::max(state.factor * rule.backoff, rule.minimum);
  const bool shrinks = rule.dynamic && factor < state.factor;
  if (shrinks) state.factor = factor;
  return shrinks;
}

}  // namespace tutti
