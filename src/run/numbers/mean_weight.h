#pragma once

namespace tutti {

/// The largest weight of a value in a mean: sums of weights, and of what they count, are in
/// float64.
inline constexpr double kMostMeanWeight = 1e150;

}  // namespace tutti
