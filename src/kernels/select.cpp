#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/select-inl.h"

#if HWY_ONCE

#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/select.h"
#include "kernels/select_sample.h"

namespace tutti {
HWY_EXPORT(collect_on_target);
HWY_EXPORT(count_digit_on_target);

namespace {

Collected collect(const Collect& work) { return HWY_DYNAMIC_DISPATCH(collect_on_target)(work); }

}  // namespace

/// One call of select_largest.
class LargestSelection {
 public:
  LargestSelection(const float* values, std::size_t count, std::size_t k, std::uint32_t* indices,
                   float* selected, SelectScratch& scratch)
      : values_(values),
        count_(count),
        k_(k),
        scratch_(scratch),
        to_{.to_indices = indices, .to_values = selected, .capacity = k} {
    scratch_.sweeps_ = 0;
  }

  Selected run() {
    if (const Sample sample(count_, k_); sample.helps()) {
      const Collected found = collect_candidates(sample);
      if (found.first_nan >= 0) return {.first_nan = found.first_nan};
      if (found.count >= k_ && found.count <= sample.room()) {
        return select(scratch_.values_.get(), scratch_.indices_.get(), found.count);
      }
    }
    scratch_.sweeps_ += kDigits + 1;
    return select(values_, nullptr, count_);
  }

 private:
  static constexpr int kDigits = 3;

  /// The k-th largest magnitude, and how many of the k have it.
  struct Kth {
    std::uint32_t magnitude = 0;
    std::size_t ties = 0;
  };

  Collected collect_candidates(const Sample& sample) {
    make_room(sample.room());
    for (std::size_t j = 0; j < sample.size(); ++j) {
      scratch_.values_[j] = values_[sample.position(j)];
    }
    const Kth estimate = kth_largest(scratch_.values_.get(), sample.size(), sample.rank());
    scratch_.sweeps_ += 1;
    return collect({.values = values_,
                    .count = count_,
                    .least = std::min(estimate.magnitude, kInfinityBits),
                    .ties = k_,
                    .to_indices = scratch_.indices_.get(),
                    .to_values = scratch_.values_.get(),
                    .capacity = scratch_.room_});
  }

  void make_room(std::size_t room) {
    if (scratch_.room_ >= room) return;
    scratch_.room_ = 0;
    scratch_.indices_ = std::make_unique_for_overwrite<std::uint32_t[]>(room);
    scratch_.values_ = std::make_unique_for_overwrite<float[]>(room);
    scratch_.room_ = room;
  }

  Selected select(const float* values, const std::uint32_t* names, std::size_t count) {
    const Kth kth = kth_largest(values, count, k_);
    Collect work = to_;
    work.values = values;
    work.names = names;
    work.count = count;
    work.least = std::min(kth.magnitude, kInfinityBits);
    work.ties = kth.ties;
    const Collected found = collect(work);
    if (found.first_nan >= 0) return {.first_nan = found.first_nan};
    TUTTI_CHECK(found.count == k_, "{} of {} selected", found.count, k_);
    return {.count = static_cast<std::int64_t>(k_)};
  }

  Kth kth_largest(const float* values, std::size_t count, std::size_t k) {
    constexpr std::size_t kBins = SelectScratch::kBins;
    auto& counts = scratch_.counts_;
    Kth kth{.ties = k};
    for (const auto& [top, bottom] : {std::pair{31, 20}, {20, 9}, {9, 0}}) {
      counts.fill(0);
      HWY_DYNAMIC_DISPATCH(count_digit_on_target)
      ({.values = values,
        .count = count,
        .prefix = kth.magnitude,
        .top = top,
        .bottom = bottom,
        .counts = counts.data(),
        .bins = kBins});
      for (std::size_t i = 0; i < kBins; ++i) {
        counts[i] += counts[i + kBins] + counts[i + 2 * kBins] + counts[i + 3 * kBins];
      }
      std::uint32_t digit = kBins - 1;
      for (; counts[digit] < kth.ties; --digit) kth.ties -= counts[digit];
      kth.magnitude |= digit << bottom;
    }
    return kth;
  }

  const float* values_;
  std::size_t count_;
  std::size_t k_;
  SelectScratch& scratch_;
  Collect to_;
};

Selected select_largest(const float* values, std::int64_t count, std::int64_t k,
                        std::uint32_t* indices, float* selected, SelectScratch& scratch) {
  TUTTI_CHECK(count <= std::numeric_limits<std::uint32_t>::max(), "selection among {} elements",
              count);
  TUTTI_CHECK(k >= 1 && k <= count, "the {} largest of {} elements", k, count);
  return LargestSelection(values, static_cast<std::size_t>(count), static_cast<std::size_t>(k),
                          indices, selected, scratch)
      .run();
}

Selected select_at_least(const float* values, std::int64_t count, float threshold,
                         std::uint32_t* indices, float* selected, std::int64_t capacity) {
  TUTTI_CHECK(count >= 0 && count <= std::numeric_limits<std::uint32_t>::max(),
              "selection among {} elements", count);
  TUTTI_CHECK(std::isfinite(threshold) && threshold >= 0, "selection from magnitude {} on",
              threshold);
  TUTTI_CHECK(capacity >= 0, "selection of {} elements at most", capacity);
  const Collected found =
      collect({.values = values,
               .count = static_cast<std::size_t>(count),
               .least = std::bit_cast<std::uint32_t>(threshold) & kMagnitudeBits,
               .to_indices = indices,
               .to_values = selected,
               .capacity = static_cast<std::size_t>(capacity)});
  if (found.first_nan >= 0) return {.first_nan = found.first_nan};
  return {.count = static_cast<std::int64_t>(found.count)};
}

}  // namespace tutti
#endif
