#pragma once

// The middle of measured values.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace bench {

/// The greater of the two in the middle of an even number. `values` has one at least.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace bench
