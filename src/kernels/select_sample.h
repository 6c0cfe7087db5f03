#pragma once

// Which elements select_largest looks at first, and what it concludes from them. Only speed depends
// on them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tutti {

/// One element of each of size() equal strata, at a fixed but scattered place: sorted and periodic
/// values are sampled as shuffled ones are.
class Sample {
 public:
  Sample(std::size_t count, std::size_t k)
      : size_(std::clamp<std::size_t>(count / 256, 1, 16384)), stride_(count / size_) {
    // The number of samples among the k largest elements is about a Poisson variable of this mean;
    // the rank is beyond its fluctuation, so that fewer than one estimate in 10^4 is too high.
    const double mean = static_cast<double>(k) / static_cast<double>(stride_);
    rank_ = static_cast<std::size_t>(std::ceil(mean + 4 * std::sqrt(mean) + 4));
    helps_ = count >= kFewest && k <= count / 16;
  }

  bool helps() const { return helps_; }
  std::size_t size() const { return size_; }
  std::size_t position(std::size_t j) const {
    std::uint64_t scattered = (j + 1) * 0x9E3779B97F4A7C15u;
    scattered = (scattered ^ scattered >> 32) * 0xD6E8FEB86659FD93u >> 32;
    return j * stride_ + static_cast<std::size_t>((scattered * stride_) >> 32);
  }

  /// The sample's rank-th largest magnitude is the estimate.
  std::size_t rank() const { return rank_; }
  /// Room for the elements that reach the estimate: three times the expected number.
  std::size_t room() const { return std::max(3 * rank_ * stride_, size_); }

 private:
  static constexpr std::size_t kFewest = 16384;

  std::size_t size_;
  std::size_t stride_;
  std::size_t rank_;
  bool helps_;
};

}  // namespace tutti
