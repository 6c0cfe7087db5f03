#pragma once

// The norms of a gradient, and what clips by norm make of them.
//
// Pure function.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sync/plan/plan.h"
#include "tutti/clip.h"

namespace tutti {

struct GradientNorms {
  std::string refusal;         ///< why the gradient cannot be applied; "": it can
  double squares = 0;          ///< ‖g‖² of all parameters together
  std::vector<double> scales;  ///< per parameter of the plan, of its gradient; empty: all 1
};

/// The norms of the given parameters; `blocks(p)` is Σ x² per block of p, and `elsewhere` that of
/// parameters outside of the plan. Refuses what is not finite.
GradientNorms norms_of(const Plan& plan, const Clip& clip,
                       std::span<const std::uint32_t> parameters,
                       const std::function<std::span<const double>(std::uint32_t)>& blocks,
                       double elsewhere = 0);

/// What a gradient of this norm is multiplied by; 0 is no bound.
double clip_scale(double bound, double norm);

/// Whether a clip needs to know norms.
inline bool needs_norms(const Clip& clip) { return clip.norm > 0 || clip.parameter_norm > 0; }

}  // namespace tutti
