#pragma once

// One line to standard error, from where nothing can be queued.
//
// Failure: none. What cannot be written is lost: it must not change the exit status.

#include <string_view>

namespace tutti::command {

/// Adds the end of the line.
void say(std::string_view line) noexcept;

}  // namespace tutti::command
