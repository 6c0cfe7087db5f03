#pragma once

// The name by which a run is told from all others.
//
// Threads: any.

#include <string>

namespace tutti {

/// 16 hexadecimal digits, drawn from the system's random numbers.
std::string draw_run_identity();

}  // namespace tutti
