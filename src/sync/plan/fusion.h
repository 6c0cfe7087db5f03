#pragma once

// The one rule by which parameters are collected in buckets: in given order, those of at most
// `limit` elements join the open bucket, which is closed once it has more than `limit`; a larger
// one is a bucket of its own; what is left at the end is the last bucket.
//
// Pure function.

#include <cstdint>
#include <span>
#include <vector>

#include "sync/plan/plan.h"

namespace tutti {

using Buckets = std::vector<std::vector<std::uint32_t>>;

/// `counts[p]` elements of parameter p; limits at least 1. Until the first bucket is there its
/// limit is `first_limit`.
Buckets fuse(std::span<const std::uint32_t> order, std::span<const std::int64_t> counts,
             std::int64_t first_limit, std::int64_t limit);

Buckets fuse(std::span<const std::uint32_t> order, const Plan& plan, std::int64_t first_limit,
             std::int64_t limit);
/// The elements of all these parameters together.
std::int64_t elements_of(const Plan& plan, std::span<const std::uint32_t> bucket);
/// The parameters that are PlanEntry::is_partitioned(), in registration order; then others of one
/// kind.
std::vector<std::uint32_t> partitioned_parameters(const Plan& plan);
/// Parameters with an array as gradient that one logical worker updates.
std::vector<std::uint32_t> placed_parameters(const Plan& plan);
std::vector<std::uint32_t> row_sparse_parameters(const Plan& plan);
std::vector<std::uint32_t> per_replica_parameters(const Plan& plan);
/// partitioned_parameters(), fused.
Buckets buckets_in_registration_order(const Plan& plan, std::int64_t limit);

}  // namespace tutti
