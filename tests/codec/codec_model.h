#pragma once

// What codecs say, in plain loops: the value that is sent of each element, −0.0 where nothing is.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/int8_model.h"

namespace tutti::test {

/// Rounded to `digits` binary digits, ties to even, with units no smaller than 2^smallest.
inline float rounded(float value, int digits, int smallest) {
  if (value == 0) return value;
  const int unit = std::max(std::ilogb(value) - digits + 1, smallest);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double{value}, -unit)), unit));
}
inline float as_half(float value) { return rounded(value, 11, -24); }
inline float as_bfloat16(float value) { return rounded(value, 8, -133); }

inline std::vector<float> kept_from(const std::vector<float>& values, float threshold) {
  std::vector<float> sent(values.size(), -0.0f);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) >= threshold) sent[i] = values[i];
  }
  return sent;
}

inline std::vector<float> largest_of(const std::vector<float>& values, double fraction) {
  const auto wanted = std::floor(fraction * static_cast<double>(values.size()) + 0.5);
  const auto k = std::max<std::size_t>(1, static_cast<std::size_t>(wanted));
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(values[a]) > std::abs(values[b]);
  });
  std::vector<float> sent(values.size(), -0.0f);
  for (std::size_t i = 0; i < k; ++i) sent[order[i]] = values[order[i]];
  return sent;
}

/// By the codec's name: "half", "bfloat16", "int8", "threshold:T", "topk:F".
inline std::vector<float> sent_by(const std::string& codec, const std::vector<float>& values) {
  if (codec.starts_with("threshold:")) return kept_from(values, std::stof(codec.substr(10)));
  if (codec.starts_with("topk:")) return largest_of(values, std::stod(codec.substr(5)));
  if (codec == "int8") return as_int8(values);
  auto sent = values;
  for (auto& value : sent) value = codec == "half" ? as_half(value) : as_bfloat16(value);
  return sent;
}

}  // namespace tutti::test
