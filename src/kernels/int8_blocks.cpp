#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int8_blocks.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/int8_blocks-inl.h"

#if HWY_ONCE

#include <cmath>

namespace tutti {
HWY_EXPORT(to_int8_on_target);
HWY_EXPORT(from_int8_on_target);
HWY_EXPORT(subtract_int8_on_target);
HWY_EXPORT(round_to_int8_on_target);

std::int64_t to_int8(std::byte* to, const float* from, std::int64_t count) {
  auto written = static_cast<std::int64_t>(
      HWY_DYNAMIC_DISPATCH(to_int8_on_target)(to, from, static_cast<std::size_t>(count)));
  if (written == count) return -1;
  while (std::isfinite(from[written])) ++written;
  return written;
}

void from_int8(float* to, const std::byte* from, std::int64_t begin, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(from_int8_on_target)
  (to, from, static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

void subtract_int8(float* values, const std::byte* from, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(subtract_int8_on_target)(values, from, static_cast<std::size_t>(count));
}

void round_to_int8(float* values, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(round_to_int8_on_target)(values, static_cast<std::size_t>(count));
}

}  // namespace tutti
#endif
