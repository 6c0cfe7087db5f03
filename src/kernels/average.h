#pragma once

// Exponential moving averages of a run of elements. One IEEE operation per element after the other,
// never contracted: a ← δ·a + (1 − δ)·v, δ and 1 − δ rounded once.
//
// Threads: pure functions on disjoint memory. Failure: none; TUTTI_CHECK on types other than
// float32 and float64.

#include <cstdint>

#include "tutti/dtype.h"

namespace tutti {

void move_average(void* average, const void* value, DType dtype, std::int64_t count, double decay);

}  // namespace tutti
