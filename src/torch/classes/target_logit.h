#pragma once

// The logit of a sample's own class under a margin.
//
// Pure function. Failure: none.

#include <algorithm>
#include <cmath>
#include <optional>

#include "tutti/parallel_cross_entropy.h"

namespace tutti {

struct TargetLogit {
  double value = 0;  ///< with the margin
  double slope = 1;  ///< d value / d logit without it
};

/// `plain` is scale·cos θ, or any logit where there is no margin.
inline TargetLogit target_logit(const std::optional<Margin>& margin, double plain) {
  if (!margin) return {plain, 1};
  constexpr double kLargestCosine = 1 - 1e-7;
  const double cosine = std::clamp(plain / margin->scale, -kLargestCosine, kLargestCosine);
  const double angle = std::acos(cosine);
  const double moved = margin->m1 * angle + margin->m2;
  return {margin->scale * (std::cos(moved) - margin->m3),
          margin->m1 * std::sin(moved) / std::sin(angle)};
}

}  // namespace tutti
