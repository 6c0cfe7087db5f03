#pragma once

// How a loss is scaled: by a Trainer (TrainerOptions::loss_scale) or a LossScaler.
//
// Threads: a value. Failure: InvalidArgument where it is used, for a factor, or a bound of it, that
// is not between 1e-10 and 1e10.

#include <cstdint>

namespace tutti {

/// The loss is multiplied by a factor before backward and the folded gradient divided by it, so
/// that small gradients survive 16-bit arithmetic (Micikevicius et al. 2018, arXiv 1710.03740,
/// section 3.2). The dynamic form and its numbers are those of torch.amp.GradScaler: a step whose
/// gradient is not finite is dropped and shrinks the factor, a run of good steps lets it grow.
struct LossScale {
  double start = 1;
  bool dynamic = false;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t grow_after = 2000;  ///< good steps in succession, since it last changed
  double minimum = 1;
  double maximum = 16777216;  ///< 2²⁴
};

/// The factor of a dynamic loss scale over the steps of a run: what is saved of it.
struct LossScaleState {
  double factor = 1;
  std::int64_t good_steps = 0;  ///< in succession, since it last changed or a step was not
};

/// GradScaler's numbers: from 2¹⁶, × 2 after 2000 good steps, × ½ on overflow.
inline LossScale dynamic_loss_scale() { return {.start = 65536, .dynamic = true}; }

}  // namespace tutti
