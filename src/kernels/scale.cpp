#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scale.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/scale-inl.h"

#if HWY_ONCE

#include <cstring>

#include "base/check.h"
#include "kernels/fold.h"

namespace tutti {
HWY_EXPORT(scale_into_on_target);
HWY_EXPORT(add_scaled_on_target);
HWY_EXPORT(all_zero_on_target);
HWY_EXPORT(name_of_target);

namespace {

std::size_t checked(DType to_type, DType from_type, std::int64_t count) {
  const bool widens =
      to_type == DType::float32 && (from_type == DType::float16 || from_type == DType::bfloat16);
  TUTTI_CHECK(to_type == from_type || widens, "{} scaled into {}", name_of(from_type),
              name_of(to_type));
  TUTTI_CHECK(count >= 0, "{} elements", count);
  return static_cast<std::size_t>(count);
}

}  // namespace

void scale_into(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                double weight) {
  const std::size_t n = checked(to_type, from_type, count);
  if (n == 0) return;
  if (weight == 1.0 && to_type == from_type) {
    if (to != from) std::memcpy(to, from, n * size_of(from_type));
    return;
  }
  TUTTI_CHECK(is_floating(from_type), "{} scaled by {}", name_of(from_type), weight);
  HWY_DYNAMIC_DISPATCH(scale_into_on_target)(to, to_type, from, from_type, n, weight);
}

void add_scaled(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                double weight) {
  const std::size_t n = checked(to_type, from_type, count);
  TUTTI_CHECK(is_floating(from_type), "weighted addition of {}", name_of(from_type));
  HWY_DYNAMIC_DISPATCH(add_scaled_on_target)(to, to_type, from, from_type, n, weight);
}

bool all_zero(const void* data, std::size_t bytes) noexcept {
  return HWY_DYNAMIC_DISPATCH(all_zero_on_target)(static_cast<const std::uint8_t*>(data), bytes);
}

const char* simd_target() noexcept { return HWY_DYNAMIC_DISPATCH(name_of_target)(); }

}  // namespace tutti
#endif
