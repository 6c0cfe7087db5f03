#pragma once

// How large a gradient may be: bounds that a Trainer applies between the sum over the workers and
// the update (TrainerOptions::clip).
//
// Threads: a value. Failure: a Trainer refuses bounds that are negative or not a number.

namespace tutti {

/// Bounds on the gradient after the division by Σ w; 0: none.
struct Clip {
  /// ‖g‖₂ of all parameters together, as torch.nn.utils.clip_grad_norm_.
  double norm = 0;
  /// ‖g‖₂ of each parameter.
  double parameter_norm = 0;
  /// |g| of each element, after the norms.
  double value = 0;
};

}  // namespace tutti
