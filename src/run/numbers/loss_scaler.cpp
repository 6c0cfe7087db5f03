#include "run/numbers/loss_scaler.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/error.h"

namespace tutti {

void require_loss_scale(const LossScale& scale) {
  const bool sized = scale.minimum > 0 && scale.start >= scale.minimum &&
                     scale.start <= scale.maximum && std::isfinite(scale.maximum);
  if (!sized && (scale.dynamic || !(scale.start > 0) || !std::isfinite(scale.start))) {
    throw InvalidArgument(
        fmt::format("loss_scale.start {}: must be between minimum {} and maximum {}", scale.start,
                    scale.minimum, scale.maximum));
  }
  // With the least weight, 1e-15, or the largest, 1e15, w · scale · g of most gradients is a number
  // of float32, and Σ w · scale is.
  constexpr double kLeastScale = 1e-10;
  constexpr double kMostScale = 1e10;
  const double least = scale.dynamic ? scale.minimum : scale.start;
  const double most = scale.dynamic ? scale.maximum : scale.start;
  if (least < kLeastScale || most > kMostScale) {
    throw InvalidArgument(fmt::format("loss_scale {}: a loss scale must be between {:g} and {:g}",
                                      least < kLeastScale ? least : most, kLeastScale, kMostScale));
  }
  if (scale.dynamic && !(scale.growth >= 1 && std::isfinite(scale.growth) && scale.backoff > 0 &&
                         scale.backoff < 1 && scale.grow_after >= 1)) {
    throw InvalidArgument(
        "loss_scale: growth must be at least 1, backoff between 0 and 1, grow_after at least 1");
  }
}

}  // namespace tutti
