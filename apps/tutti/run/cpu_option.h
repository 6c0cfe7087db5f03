#pragma once

// `tutti run --cpu`: one bound on instruction sets for all workers (base/cpu_level.h).

#include <string>
#include <vector>

#include "base/cpu_level.h"

namespace tutti::command {

/// Names of the levels that a processor has, from the least to the most.
std::vector<std::string> levels_of(const Processor& processor,
                                   Architecture architecture = kArchitecture);
/// "default, avx2, avx512 or native"
std::string cpu_option_values(Architecture architecture = kArchitecture);

/// What workers get besides, for a value of --cpu that may be empty. Throws Refusal for an unknown
/// value, a level that the processor does not have, and where a variable that is inherited
/// ("NAME=value" each) bounds instruction sets otherwise.
LibrarySettings settings_for(const std::string& cpu, const Processor& processor,
                             const std::vector<std::string>& inherited,
                             Architecture architecture = kArchitecture);

}  // namespace tutti::command
