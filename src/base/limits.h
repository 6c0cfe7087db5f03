#pragma once

// The memory and processors that the machine and the control groups above this process allow. Both
// generations of cgroups are supported, at any mount point in mountinfo.
//
// All files are read below `root`, so that tests can simulate a machine; the real one is "/".
// Threads: pure functions of the file tree. Failure: what cannot be read sets no limit.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/system.h"

namespace tutti {

/// Control groups of this process that carry one controller, innermost first, up to the mount.
struct ControlGroups {
  int generation = 2;                          ///< cgroup v1 or v2
  std::vector<std::filesystem::path> folders;  ///< below root
};

/// The control groups that govern `controller` ("memory", "cpu"); those of v2 follow those of v1.
std::vector<ControlGroups> find_control_groups(const std::filesystem::path& root,
                                               const std::string& controller);

/// See System::memory_bounds.
std::vector<MemoryBound> read_memory_bounds(const std::filesystem::path& root);

/// See System::own_memory_bounds.
std::vector<MemoryBound> read_own_memory_bounds();

/// Smallest processor quota of all control groups, rounded up; nothing when none is set.
std::optional<int> read_processor_quota(const std::filesystem::path& root);

}  // namespace tutti
