#pragma once

// The process of another launcher (torchrun, mpirun, srun) that has started the workers of this
// host. Those workers share nothing else that no other job has: a port is used again, a name of a
// job may be "none".
//
// Threads: a pure function of the file tree. Failure: none; what cannot be read is left out.

#include <filesystem>
#include <string>
#include <string_view>

namespace tutti {

struct LauncherProcess {
  std::string number;
  /// The same for all workers below one launcher, and not for those of any other, on this machine.
  std::string identity;
};

/// The nearest process above this one that was not started with the variable in its environment, or
/// whose environment this user may not read. `root` is "/".
LauncherProcess find_launcher_process(const std::filesystem::path& root,
                                      std::string_view rank_variable);

}  // namespace tutti
