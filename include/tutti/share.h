#pragma once

// Who owns which part of what: contiguous ranges in rank order.
//
// Threads: any. Failure: InvalidArgument for a negative total, or a part that is not among the
// parts.

#include <cstdint>
#include <utility>

#include "tutti/group.h"
#include "tutti/job.h"

namespace tutti {

/// The range [first, second) of part `part` when `total` items are cut into `parts`: the first
/// total % parts get one more. Ranges are disjoint and cover all.
std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, std::int64_t part,
                                               std::int64_t parts);

/// This worker's range of `total` micro-batches, rows, files …
inline std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, const Group& group) {
  return share_of(total, group.rank(), group.size());
}
inline std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, const Job& job) {
  return share_of(total, job.rank(), job.size());
}

}  // namespace tutti
