#pragma once

// What a selection by magnitude has to find, by sorting; and values that are hard to select from.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "scalar_model.h"

namespace tutti::select_model {

inline constexpr float kDenormal = 0x1p-149F;

/// Indices, and the bits of the values: −0 is not +0 here.
struct Entries {
  std::vector<std::uint32_t> indices;
  std::vector<std::uint32_t> bits;
  bool operator==(const Entries&) const = default;
};

inline Entries entries_at(const std::vector<float>& values, std::span<const std::uint32_t> chosen) {
  Entries result{.indices = {chosen.begin(), chosen.end()}, .bits = {}};
  std::ranges::sort(result.indices);
  for (const auto i : result.indices)
    result.bits.push_back(std::bit_cast<std::uint32_t>(values[i]));
  return result;
}

inline bool larger(float a, float b) { return std::fabs(a) > std::fabs(b); }

/// All indices by `before`; what it leaves open goes to the lower one.
template <class Before>
std::vector<std::uint32_t> order_by(const std::vector<float>& values, const Before& before) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(
      order, [&](std::uint32_t a, std::uint32_t b) { return before(values[a], values[b]); });
  return order;
}

class Model {
 public:
  explicit Model(const std::vector<float>& values)
      : values_(values), order_(order_by(values, larger)) {}
  Entries largest(std::size_t k) const { return entries_at(values_, {order_.data(), k}); }

 private:
  const std::vector<float>& values_;
  std::vector<std::uint32_t> order_;
};

inline Entries model_largest(const std::vector<float>& values, std::size_t k) {
  return Model(values).largest(k);
}

inline Entries model_at_least(const std::vector<float>& values, float threshold) {
  std::vector<std::uint32_t> indices;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::fabs(values[i]) >= threshold) indices.push_back(static_cast<std::uint32_t>(i));
  }
  return entries_at(values, indices);
}

inline std::vector<float> generated(std::size_t count,
                                    const std::function<float(std::size_t)>& at) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = at(i);
  return values;
}

/// By name, so that a failure says of which.
inline std::map<std::string, std::vector<float>> distributions(std::size_t count) {
  const auto random = model::random_values<float>(count + 1, 7);
  const auto of = [&](const auto& at) { return generated(count, at); };
  const auto sign = [](std::size_t i) { return i % 3 == 0 ? -1.0F : 1.0F; };
  return {
      {"random", of([&](std::size_t i) { return random[i]; })},
      {"below one", of([&](std::size_t i) { return 0.9F / (2 + std::fabs(random[i])); })},
      {"equal", of([&](std::size_t i) { return 2.5F * sign(i); })},
      {"zeros of both signs", of([&](std::size_t i) { return 0 * sign(i); })},
      {"ascending", of([&](std::size_t i) { return static_cast<float>(i) * sign(i); })},
      {"descending", of([&](std::size_t i) { return static_cast<float>(count - i); })},
      {"two values", of([&](std::size_t i) { return random[i] > 0 ? 1.0F : -1.5F; })},
      {"five values", of([&](std::size_t i) { return std::round(4 * std::tanh(random[i])); })},
      {"half zeros", of([&](std::size_t i) { return i % 2 == 0 ? random[i] : -0.0F; })},
      {"few not zero", of([&](std::size_t i) { return i % 501 == 3 ? random[i] : 0.0F; })},
      {"heavy tails", of([&](std::size_t i) { return random[i] / random[i + 1]; })},
      {"denormals", of([&](std::size_t i) { return kDenormal * std::round(9 * random[i]); })},
      {"close together", of([&](std::size_t i) { return 1 + std::fabs(random[i]) * 0x1p-20F; })},
      {"infinities", of([&](std::size_t i) { return i % 50 == 7 ? sign(i) * INFINITY : 3e38F; })},
  };
}

}  // namespace tutti::select_model
