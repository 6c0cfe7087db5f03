#include "sync/plan/bucket_schedule.h"

#include <numeric>

#include "kernels/hash.h"

namespace tutti {

BucketSchedule::BucketSchedule(const Plan& plan, std::span<const std::uint32_t> order,
                               std::int64_t first_limit, std::int64_t limit)
    : buckets_(fuse(order, plan, first_limit, limit)), bucket_of_(plan.parameters().size()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const auto p : buckets_[b]) bucket_of_[p] = static_cast<std::uint32_t>(b);
    hash_ = digest(buckets_[b].data(), buckets_[b].size() * sizeof(std::uint32_t), hash_ + 1);
  }
}

std::vector<std::uint32_t> BucketSchedule::default_order(const Plan& plan) {
  std::vector<std::uint32_t> order(plan.parameters().size());
  std::iota(order.rbegin(), order.rend(), 0u);
  return order;
}

}  // namespace tutti
