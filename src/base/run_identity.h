#pragma once

// The name by which a run is told from all others.
//
// Threads: any.

#include <string>
#include <string_view>

namespace tutti {

/// 16 hexadecimal digits, drawn from the system's random numbers.
std::string draw_run_identity();

/// 16 hexadecimal digits, the same for the same text.
std::string derive_run_identity(std::string_view text);

}  // namespace tutti
