#include "kernels/average.h"

#include "base/check.h"

namespace tutti {
namespace {

template <class T>
void move(T* average, const T* value, std::int64_t count, double decay) {
  const auto old_part = static_cast<T>(decay);
  const auto new_part = static_cast<T>(1 - decay);
  for (std::int64_t i = 0; i < count; ++i) {
    average[i] = old_part * average[i] + new_part * value[i];
  }
}

}  // namespace

void move_average(void* average, const void* value, DType dtype, std::int64_t count, double decay) {
  TUTTI_CHECK(dtype == DType::float32 || dtype == DType::float64, "an average of {}",
              name_of(dtype));
  if (dtype == DType::float64) {
    move(static_cast<double*>(average), static_cast<const double*>(value), count, decay);
  } else {
    move(static_cast<float*>(average), static_cast<const float*>(value), count, decay);
  }
}

}  // namespace tutti
