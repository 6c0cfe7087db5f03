#pragma once

// The unit of the selection benchmark: an array read from end to end, next to no arithmetic.

#include <cstddef>
#include <cstdint>

/// All bits that are set anywhere.
std::uint32_t sweep(const float* values, std::size_t count);
