// Compiled for all that this machine has: a bound, not a rival.

#include "classifier/streams.h"

float touch_weights(float* __restrict weights, float* __restrict momentum, std::size_t count) {
  constexpr std::size_t kLanes = 64;
  float sums[kLanes] = {};
  for (std::size_t i = 0; i + kLanes <= count; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) sums[k] += weights[i + k];
  }
  for (std::size_t i = 0; i < count; ++i) {
    momentum[i] = 0.9F * momentum[i] + weights[i];
    weights[i] -= 1e-9F * momentum[i];
  }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}
