#include "sync/fusion.h"

#include <utility>

namespace tutti {

ParameterGroups fuse(std::span<const std::uint32_t> order, std::span<const std::int64_t> counts,
                     std::int64_t first_limit, std::int64_t limit) {
  ParameterGroups groups;
  std::vector<std::uint32_t> open;
  std::int64_t filled = 0;
  for (const auto p : order) {
    const auto at_most = groups.empty() ? first_limit : limit;
    if (counts[p] > at_most) {
      groups.push_back({p});
      continue;
    }
    open.push_back(p);
    filled += counts[p];
    if (filled <= at_most) continue;
    groups.push_back(std::exchange(open, {}));
    filled = 0;
  }
  if (!open.empty()) groups.push_back(std::move(open));
  return groups;
}

ParameterGroups groups_in_registration_order(const Plan& plan, std::int64_t limit) {
  std::vector<std::uint32_t> order;
  std::vector<std::int64_t> counts;
  for (const auto& entry : plan.parameters()) {
    order.push_back(static_cast<std::uint32_t>(order.size()));
    counts.push_back(entry.spec.count);
  }
  return fuse(order, counts, limit, limit);
}

}  // namespace tutti
