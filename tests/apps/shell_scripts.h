#pragma once

// Parts of the shell scripts that tests of `tutti run` start as workers.

#include <sys/stat.h>

#include <fstream>
#include <string>

namespace tutti {

/// Ends when the file is there.
inline std::string wait_for_file(const std::string& path) {
  return "while [ ! -e " + path + " ]; do sleep 0.02; done; ";
}

/// Makes a remote shell for `--ssh` that stays on this machine, and returns its path: its script
/// gets the name of a host as $1 and a line for a shell as $2.
inline std::string write_remote_shell(const std::string& file,
                                      const std::string& script = "cd / && exec sh -c \"$2\"") {
  std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
  ::chmod(file.c_str(), 0755);
  return file;
}

}  // namespace tutti
