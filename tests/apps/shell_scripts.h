#pragma once

// Parts of the shell scripts that tests of `tutti run` start as workers.

#include <string>

namespace tutti {

/// Ends when the file is there.
inline std::string wait_for_file(const std::string& path) {
  return "while [ ! -e " + path + " ]; do sleep 0.02; done; ";
}

}  // namespace tutti
