#pragma once

// What the machine and the control groups above this process allow: memory and processors. Both
// generations of cgroups, mounted wherever mountinfo says.
//
// All files are read below `root`, so that tests can show a made-up machine; the real one is "/".
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

/// Where `controller` ("memory", "cpu") is governed; v2 folders follow those of v1.
std::vector<ControlGroups> find_control_groups(const std::filesystem::path& root,
                                               const std::string& controller);

/// See System::memory_bounds.
std::vector<MemoryBound> read_memory_bounds(const std::filesystem::path& root);

/// Smallest processor quota of all control groups, rounded up; nothing when none is set.
std::optional<int> read_processor_quota(const std::filesystem::path& root);

}  // namespace tutti
