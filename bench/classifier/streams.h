#pragma once

#include <cstddef>

/// The memory that a step of a classifier with momentum moves at least, of `count` weights: they
/// are read, then read again beside their momentum, and both are written. Returns the first sweep's
/// sum, so that it is one.
float touch_weights(float* weights, float* momentum, std::size_t count);
