#pragma once

// Threads: any. Failure: false, with errno; a part may have been written.

#include <string_view>

namespace tutti::command {

/// Writes all of `text`, in as many pieces as it takes.
bool write_all(int to, std::string_view text) noexcept;

}  // namespace tutti::command
