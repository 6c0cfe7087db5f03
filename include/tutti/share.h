#pragma once

// Who owns which part of what: contiguous ranges in rank order.
//
// Threads: any. Failure: InvalidArgument for a negative total, or a part that is not among the
// parts.

#include <cstdint>
#include <utility>

namespace tutti {

/// The range [first, second) of part `part` when `total` items are cut into `parts`: the first
/// total % parts get one more. Ranges are disjoint and cover all.
std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, std::int64_t part,
                                               std::int64_t parts);

/// This worker's range of `total` micro-batches, rows, files … among those of a Group or a Job.
template <class Workers>
auto share_of(std::int64_t total, const Workers& workers)
    -> decltype(share_of(total, workers.rank(), workers.size())) {
  return share_of(total, workers.rank(), workers.size());
}

}  // namespace tutti
