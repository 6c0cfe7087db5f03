#include "kernels/update.h"

#include "base/check.h"

namespace tutti {
namespace {

void check(const PreparedUpdate& by, const UpdateTarget& target) {
  TUTTI_CHECK(target.dtype == DType::float32 || target.dtype == DType::float64, "an update of {}",
              name_of(target.dtype));
  TUTTI_CHECK(target.count >= 0, "an update of {} elements", target.count);
  TUTTI_CHECK(target.clip_value >= 0, "a gradient within ±{}", target.clip_value);
  if (target.count == 0) return;
  TUTTI_CHECK(target.gradient != nullptr, "an update without a gradient");
  TUTTI_CHECK(target.parameter != nullptr, "an update without a parameter");
  for (std::size_t k = 0; k < by.states; ++k) {
    TUTTI_CHECK(target.states[k] != nullptr, "an update without state {} of {}", k, by.states);
  }
}

}  // namespace

void update(const PreparedUpdate& by, const UpdateTarget& target) {
  check(by, target);
  by.run(target);
}

}  // namespace tutti
