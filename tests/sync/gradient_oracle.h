#pragma once

// What a step must give, computed the slow way: every leaf's gradient in memory, one recursive fold
// over the canonical tree, one division.

#include <bit>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/norm.h"
#include "sync/plan/plan.h"

namespace tutti::test {

using Values = std::vector<float>;
/// Absent where the leaf did not write the parameter.
using Leaf = std::vector<std::optional<Values>>;

inline Values random_values(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  Values values(count);
  for (auto& v : values) v = value(random) * static_cast<float>(1 << (random() % 12));
  return values;
}

/// float32 parameters p0, p1 … of that many elements.
inline std::vector<TensorSpec> specs_of(const std::vector<std::size_t>& counts) {
  std::vector<TensorSpec> specs;
  for (std::size_t p = 0; p < counts.size(); ++p) {
    const auto count = static_cast<std::int64_t>(counts[p]);
    specs.push_back({"p" + std::to_string(p), {count}, {1}, count, DType::float32});
  }
  return specs;
}

inline Plan plan_of(const std::vector<std::size_t>& counts) { return {specs_of(counts), {}}; }

/// The gradient of leaf `leaf` in step `step`; parameter p is absent with the given chance in
/// eight.
inline Leaf random_leaf(const std::vector<std::size_t>& counts, std::int64_t step,
                        std::int64_t leaf, unsigned absent_in_eight) {
  Leaf gradients;
  for (std::size_t p = 0; p < counts.size(); ++p) {
    const auto seed = static_cast<std::uint64_t>(step * 1000003 + leaf * 1009) + p * 17;
    std::mt19937_64 random(seed * 31 + 7);
    if (random() % 8 < absent_in_eight) {
      gradients.emplace_back();
    } else {
      gradients.emplace_back(random_values(seed, counts[p]));
    }
  }
  return gradients;
}

/// Σ x² as a norm takes it.
inline double squares_of(const Values& values) {
  std::vector<double> blocks((values.size() + kNormBlock - 1) / kNormBlock);
  squares_of_blocks(values.data(), DType::float32, static_cast<std::int64_t>(values.size()),
                    blocks);
  return tree_sum(blocks);
}

inline std::optional<Values> fold_range(const std::vector<std::optional<Values>>& leaves,
                                        std::size_t begin, std::size_t end) {
  if (end - begin == 1) return leaves[begin];
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  auto left = fold_range(leaves, begin, middle);
  const auto right = fold_range(leaves, middle, end);
  if (!left) return right;
  if (!right) return left;
  for (std::size_t i = 0; i < left->size(); ++i) (*left)[i] += (*right)[i];
  return left;
}

/// Σ w·g of one parameter along the tree, divided by `divisor`; absent if no leaf wrote it.
inline std::optional<Values> reduced(const std::vector<Leaf>& leaves,
                                     const std::vector<double>& weights, std::size_t parameter,
                                     double divisor) {
  std::vector<std::optional<Values>> scaled;
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    auto values = weights[l] == 0 ? std::nullopt : leaves[l][parameter];
    if (values && weights[l] != 1) {
      for (auto& v : *values) v *= static_cast<float>(weights[l]);
    }
    scaled.push_back(std::move(values));
  }
  auto sum = fold_range(scaled, 0, scaled.size());
  if (sum && divisor != 1) {
    for (auto& v : *sum) v /= static_cast<float>(divisor);
  }
  return sum;
}

}  // namespace tutti::test
