#pragma once

// Finds the program before any worker is started, so that a wrong name is one error, not N.

#include <string>

namespace tutti::command {

/// The file that `name` means, as a shell finds it: as a path when it holds a '/', along PATH
/// otherwise. Throws Refusal with status 127 when there is none, 126 when it cannot be executed.
std::string find_program(const std::string& name);

}  // namespace tutti::command
