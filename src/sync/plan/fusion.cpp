#include "sync/plan/fusion.h"

#include <utility>

namespace tutti {
namespace {

template <class Is>
std::vector<std::uint32_t> those_of(const Plan& plan, const Is& is) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t p = 0; p < plan.parameters().size(); ++p) {
    if (is(plan.parameters()[p])) order.push_back(p);
  }
  return order;
}

}  // namespace

Buckets fuse(std::span<const std::uint32_t> order, std::span<const std::int64_t> counts,
             std::int64_t first_limit, std::int64_t limit) {
  Buckets buckets;
  std::vector<std::uint32_t> open;
  std::int64_t filled = 0;
  for (const auto p : order) {
    const auto at_most = buckets.empty() ? first_limit : limit;
    if (counts[p] > at_most) {
      buckets.push_back({p});
      continue;
    }
    open.push_back(p);
    filled += counts[p];
    if (filled <= at_most) continue;
    buckets.push_back(std::exchange(open, {}));
    filled = 0;
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

Buckets fuse(std::span<const std::uint32_t> order, const Plan& plan, std::int64_t first_limit,
             std::int64_t limit) {
  std::vector<std::int64_t> counts;
  for (const auto& entry : plan.parameters()) counts.push_back(entry.spec.count);
  return fuse(order, counts, first_limit, limit);
}

std::int64_t elements_of(const Plan& plan, std::span<const std::uint32_t> bucket) {
  std::int64_t count = 0;
  for (const auto p : bucket) count += plan.parameters()[p].spec.count;
  return count;
}

std::vector<std::uint32_t> partitioned_parameters(const Plan& plan) {
  return those_of(plan, [](const PlanEntry& entry) { return entry.is_partitioned(); });
}

std::vector<std::uint32_t> placed_parameters(const Plan& plan) {
  return those_of(
      plan, [](const PlanEntry& entry) { return entry.is_reduced() && !entry.is_partitioned(); });
}

std::vector<std::uint32_t> row_sparse_parameters(const Plan& plan) {
  return those_of(plan, [](const PlanEntry& entry) { return entry.row_sparse(); });
}

std::vector<std::uint32_t> per_replica_parameters(const Plan& plan) {
  return those_of(plan, [](const PlanEntry& entry) { return entry.spec.is_per_replica; });
}

Buckets buckets_in_registration_order(const Plan& plan, std::int64_t limit) {
  return fuse(partitioned_parameters(plan), plan, limit, limit);
}

}  // namespace tutti
