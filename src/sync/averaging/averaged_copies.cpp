#include "sync/averaging/averaged_copies.h"

#include <type_traits>

namespace tutti {

void mix_into(std::byte* copy, const std::byte* values, DType type, std::int64_t count,
              double own) {
  const auto mix = [&](auto* to, const auto* from) {
    using Number = std::remove_pointer_t<decltype(to)>;
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<Number>(own * to[i] + (1 - own) * from[i]);
    }
  };
  if (type == DType::float64) {
    mix(reinterpret_cast<double*>(copy), reinterpret_cast<const double*>(values));
  } else {
    mix(reinterpret_cast<float*>(copy), reinterpret_cast<const float*>(values));
  }
}

}  // namespace tutti
