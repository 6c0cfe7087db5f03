#pragma once

// Which parameters are exchanged together, and in what order. Only a schedule: no bit of any result
// depends on it.
//
// Pure value.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"

namespace tutti {

class BucketSchedule {
 public:
  /// The parameters in `order`, fused (fusion.h). Limits in elements.
  BucketSchedule(const Plan& plan, std::span<const std::uint32_t> order, std::int64_t first_limit,
                 std::int64_t limit);
  /// Order before anything was observed: last registered first.
  static std::vector<std::uint32_t> default_order(const Plan& plan);

  std::size_t size() const { return buckets_.size(); }
  std::span<const std::uint32_t> parameters(std::size_t bucket) const { return buckets_[bucket]; }
  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  std::uint64_t hash() const { return hash_; }

 private:
  Buckets buckets_;
  std::vector<std::uint32_t> bucket_of_;
  std::uint64_t hash_ = 0;
};

}  // namespace tutti
