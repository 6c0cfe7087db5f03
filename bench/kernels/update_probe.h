#pragma once

// The bound of update_bench: the same mix of streams with next to no arithmetic.

#include <cstddef>
#include <span>

/// Reads every node, and reads and writes a, b and c. 2, 4 or 8 nodes.
void touch_streams(std::span<const float* const> nodes, float* a, float* b, float* c,
                   std::size_t count);
