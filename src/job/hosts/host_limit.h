#pragma once

// How many workers a host may have.

namespace tutti {

/// kMaxWorkersPerHost of tutti/job.h, for what knows ranks and no job.
inline constexpr int kMaxRanksOfHost = 64;

}  // namespace tutti
