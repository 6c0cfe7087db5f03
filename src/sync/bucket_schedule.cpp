#include "sync/bucket_schedule.h"

#include <numeric>

#include "kernels/hash.h"

namespace tutti {

BucketSchedule::BucketSchedule(const Plan& plan, std::span<const std::uint32_t> order,
                               std::size_t first_bytes, std::size_t bytes)
    : bucket_of_(plan.parameters().size()) {
  std::size_t limit = first_bytes;
  std::size_t filled = 0;
  std::vector<std::uint32_t> bucket;
  const auto close = [&] {
    if (bucket.empty()) return;
    for (const auto p : bucket) bucket_of_[p] = static_cast<std::uint32_t>(buckets_.size());
    hash_ = digest(bucket.data(), bucket.size() * sizeof(std::uint32_t), hash_ + 1);
    buckets_.push_back(std::move(bucket));
    bucket.clear();
    filled = 0;
    limit = bytes;
  };
  for (const auto p : order) {
    bucket.push_back(p);
    filled += plan.parameters()[p].node_bytes;
    if (filled >= limit) close();
  }
  close();
}

std::vector<std::uint32_t> BucketSchedule::default_order(const Plan& plan) {
  std::vector<std::uint32_t> order(plan.parameters().size());
  std::iota(order.rbegin(), order.rend(), 0u);
  return order;
}

}  // namespace tutti
