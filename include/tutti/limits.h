#pragma once

// The sizes that a job may have.

namespace tutti {

/// Most workers of a job.
inline constexpr int kMaxWorkers = 1024;
/// Most of them on one host.
inline constexpr int kMaxWorkersPerHost = 64;
/// Most lanes of a group.
inline constexpr int kMaxGroupLanes = 8;

}  // namespace tutti
