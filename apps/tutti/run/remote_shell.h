#pragma once

// Lines for the shell of another host.
//
// Threads: pure functions.

#include <string>
#include <vector>

namespace tutti::command {

/// The command that gets the name of a host and a line, unless --ssh gives another.
inline constexpr const char* kSsh = "ssh -o BatchMode=yes";

/// As one word of a shell.
std::string shell_word(const std::string& word);
/// The line that runs these words in the folder of this process.
std::string remote_line(const std::vector<std::string>& words);

}  // namespace tutti::command
