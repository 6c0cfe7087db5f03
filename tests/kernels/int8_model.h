#pragma once

// Blocks of 8-bit integers, in plain loops.

#include <algorithm>
#include <cmath>
#include <vector>

namespace tutti::test {

/// Values of one parameter. Each block of 256 has a scale, a 127th of its largest magnitude: a
/// float32, cut to 17 binary digits, at least 2^-126.
inline std::vector<float> as_int8(const std::vector<float>& values) {
  std::vector<float> sent;
  for (std::size_t begin = 0; begin < values.size(); begin += 256) {
    const auto end = std::min(begin + 256, values.size());
    float largest = 0;
    for (auto i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    double scale = 0x1p-126;
    if (const float whole = largest / 127.0f; whole > 0x1p-126f) {
      const int unit = std::ilogb(whole) - 16;
      scale = std::ldexp(std::floor(std::ldexp(double{whole}, -unit)), unit);
    }
    for (auto i = begin; i < end; ++i) {
      const float ratio = values[i] / static_cast<float>(scale);
      const double product = std::nearbyint(double{ratio}) * scale;
      sent.push_back(static_cast<float>(product) + 0.0f);  // no zero has a sign
    }
  }
  return sent;
}

}  // namespace tutti::test
