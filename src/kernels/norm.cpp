#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/norm-inl.h"

#if HWY_ONCE

#include <bit>

#include "base/check.h"

namespace tutti {
HWY_EXPORT(squares_of_blocks_on_target);

void squares_of_blocks(const void* data, DType dtype, std::int64_t count,
                       std::span<double> blocks) {
  TUTTI_CHECK(is_floating(dtype), "squares of {}", name_of(dtype));
  TUTTI_CHECK(count >= 0, "squares of {} elements", count);
  const std::int64_t needed = count / kNormBlock + (count % kNormBlock != 0);
  TUTTI_CHECK(static_cast<std::int64_t>(blocks.size()) == needed, "{} blocks of {} elements",
              blocks.size(), count);
  HWY_DYNAMIC_DISPATCH(squares_of_blocks_on_target)
  (data, dtype, static_cast<std::size_t>(count), blocks);
}

double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const std::size_t left = std::bit_floor(values.size() - 1);
  return tree_sum(values.first(left)) + tree_sum(values.subspan(left));
}

}  // namespace tutti
#endif
