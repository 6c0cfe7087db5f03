#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scale.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/scale-inl.h"

#if HWY_ONCE

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/fold.h"

namespace tutti {
HWY_EXPORT(scale_into_on_target);
HWY_EXPORT(add_scaled_on_target);
HWY_EXPORT(largest_magnitude_on_target);
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

void copy(void* to, const void* from, DType dtype, std::size_t count) {
  if (to != from) std::memcpy(to, from, count * size_of(dtype));
}

/// Block by block, measured while a block is in the first-level cache.
double copy_measured(void* to, const void* from, DType dtype, std::size_t count) {
  const std::size_t block = std::size_t{16} * 1024 / size_of(dtype);
  double largest = 0;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    void* const piece = static_cast<std::byte*>(to) + begin * size_of(dtype);
    copy(piece, static_cast<const std::byte*>(from) + begin * size_of(dtype), dtype, n);
    const double magnitude = largest_magnitude(piece, dtype, static_cast<std::int64_t>(n));
    // NaN compares false, so it comes in, and stays.
    if (!(magnitude <= largest) && largest == largest) largest = magnitude;
  }
  return largest;
}

}  // namespace

void scale_into(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                double weight, double* largest) {
  const std::size_t n = checked(to_type, from_type, count);
  TUTTI_CHECK(largest == nullptr || is_floating(from_type), "largest magnitude of {}",
              name_of(from_type));
  if (largest != nullptr) *largest = 0;
  if (n == 0) return;
  if (weight == 1.0 && to_type == from_type) {
    if (largest == nullptr) return copy(to, from, from_type, n);
    *largest = copy_measured(to, from, from_type, n);
    return;
  }
  TUTTI_CHECK(is_floating(from_type), "{} scaled by {}", name_of(from_type), weight);
  HWY_DYNAMIC_DISPATCH(scale_into_on_target)(to, to_type, from, from_type, n, weight, largest);
}

double largest_magnitude(const void* data, DType dtype, std::int64_t count) {
  TUTTI_CHECK(is_floating(dtype), "largest magnitude of {}", name_of(dtype));
  TUTTI_CHECK(count >= 0, "{} elements", count);
  return HWY_DYNAMIC_DISPATCH(largest_magnitude_on_target)(data, dtype,
                                                           static_cast<std::size_t>(count));
}

void add_scaled(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                double weight, double* largest) {
  const std::size_t n = checked(to_type, from_type, count);
  TUTTI_CHECK(is_floating(from_type), "weighted addition of {}", name_of(from_type));
  HWY_DYNAMIC_DISPATCH(add_scaled_on_target)(to, to_type, from, from_type, n, weight, largest);
}

bool all_zero(const void* data, std::size_t bytes) noexcept {
  return HWY_DYNAMIC_DISPATCH(all_zero_on_target)(static_cast<const std::uint8_t*>(data), bytes);
}

const char* simd_target() noexcept { return HWY_DYNAMIC_DISPATCH(name_of_target)(); }

}  // namespace tutti
#endif
