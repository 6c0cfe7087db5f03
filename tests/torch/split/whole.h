#pragma once

// Shared by the tests of split layers: batches of uneven members, and the whole beside its parts.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/sanitized.h"
#include "torch/training.h"

namespace tutti::test {

inline torch::Tensor drawn(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(torch::kFloat64);
}

inline torch::Tensor drawn_labels(std::uint64_t seed, std::int64_t classes,
                                  torch::IntArrayRef sizes) {
  return torch::randint(0, classes, sizes, at::make_generator<at::CPUGeneratorImpl>(seed),
                        torch::kInt64);
}

/// Each member's rows of a joined batch: 4, 2, none, 3, 1, 4 …
class UnevenBatch {
 public:
  explicit UnevenBatch(const Group& group) {
    for (int r = 0; r < group.size(); ++r) {
      if (r == group.rank()) begin_ = total_;
      total_ += rows_of(r);
    }
    rows_ = rows_of(group.rank());
  }
  std::int64_t total() const { return total_; }
  std::int64_t rows() const { return rows_; }
  torch::Tensor mine(const torch::Tensor& all) const {
    return all.slice(0, begin_, begin_ + rows_);
  }

 private:
  static std::int64_t rows_of(int rank) { return (rank * 3 + 4) % 5; }

  std::int64_t total_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t rows_ = 0;
};

/// This member's rows of a whole that is split.
inline torch::Tensor part_of(const torch::Tensor& whole, const Group& group) {
  const auto [first, last] = share_of(whole.size(0), group);
  return whole.slice(0, first, last);
}

/// No element differs by more than that part of the largest, or of 1.
inline void expect_near(const torch::Tensor& one, const torch::Tensor& other,
                        const std::string& what, double tolerance = 1e-12) {
  ASSERT_EQ(one.sizes(), other.sizes()) << what;
  if (one.numel() == 0) return;
  const double scale = std::max(1.0, other.abs().max().item<double>());
  EXPECT_LE((one - other).abs().max().item<double>(), tolerance * scale) << what;
}

/// Each element weighs otherwise, and not linearly.
inline torch::Tensor curved(const torch::Tensor& x, const torch::Tensor& weights) {
  return (x * weights).sin().sum() + 0.5 * x.square().sum();
}

/// The texts of the errors that end the workers.
inline std::vector<std::string> ends_of(int size, const std::function<void(const Group&)>& body) {
  const auto outcome = outcome_on_workers(size, [&](const Job& job) { body(Group(job)); });
  std::vector<std::string> texts;
  for (const auto& rank : outcome.ranks) texts.push_back(rank.text);
  return texts;
}

}  // namespace tutti::test
