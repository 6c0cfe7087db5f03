#include "tutti/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/hash.h"
#include "run/data/data_order.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::vector<std::int64_t> draw(const std::vector<double>& sums, std::int64_t count,
                               std::uint64_t seed, std::int64_t epoch) {
  const std::uint64_t words[] = {seed, static_cast<std::uint64_t>(epoch)};
  std::mt19937_64 random(digest(words, sizeof words));
  // The last sample that has a weight, for draws that rounding moves to the sum of all weights.
  const auto last = std::lower_bound(sums.begin(), sums.end(), sums.back());
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  for (auto& sample : samples) {
    const double place = std::ldexp(static_cast<double>(random() >> 11U), -53) * sums.back();
    sample = std::min(std::upper_bound(sums.begin(), sums.end(), place), last) - sums.begin();
  }
  return samples;
}

}  // namespace

SampleOrder::SampleOrder() = default;

SampleOrder SampleOrder::sequential() {
  SampleOrder order;
  order.kind_ = Kind::sequential;
  order.text_ = "sequential";
  return order;
}

SampleOrder SampleOrder::weighted(std::vector<double> weights, std::int64_t samples) {
  if (samples < 1)
    throw InvalidArgument(fmt::format("{} weighted samples per epoch: at least 1", samples));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 0 && std::isfinite(weights[i])) continue;
    throw InvalidArgument(fmt::format(
        "sample {} has the weight {}: weights must be finite and not negative", i, weights[i]));
  }
  SampleOrder order;
  order.kind_ = Kind::weighted;
  order.text_ = fmt::format("weighted, {} of {} samples, weights {:016x}", samples, weights.size(),
                            digest(weights.data(), weights.size() * sizeof(double)));
  order.drawn_ = samples;
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  if (weights.empty() || !(weights.back() > 0) || !std::isfinite(weights.back())) {
    throw InvalidArgument("the weights of the samples must have a positive, finite sum");
  }
  order.sums_ = std::make_shared<const std::vector<double>>(std::move(weights));
  return order;
}

SampleOrder::SampleOrder(std::string name, Samples samples)
    : kind_(Kind::own), text_(std::move(name)), samples_(std::move(samples)) {
  if (text_.empty() || !samples_)
    throw InvalidArgument("an order of samples needs a name and a function");
}

std::optional<std::int64_t> SampleOrder::epoch_size(std::int64_t dataset_size) const {
  if (kind_ == Kind::own) return {};
  return kind_ == Kind::weighted ? drawn_ : dataset_size;
}

std::vector<std::int64_t> SampleOrder::of_epoch(std::int64_t dataset_size, std::uint64_t seed,
                                                std::int64_t epoch) const {
  if (dataset_size < 1 || epoch < 0) {
    throw InvalidArgument(fmt::format("epoch {} of a data set of {} samples", epoch, dataset_size));
  }
  if (kind_ == Kind::shuffled) return permutation_of(dataset_size, seed, epoch);
  if (kind_ == Kind::sequential) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(dataset_size));
    std::iota(samples.begin(), samples.end(), std::int64_t{0});
    return samples;
  }
  if (kind_ == Kind::weighted) {
    if (static_cast<std::int64_t>(sums_->size()) != dataset_size) {
      throw InvalidArgument(
          fmt::format("{} weights for a data set of {} samples", sums_->size(), dataset_size));
    }
    return draw(*sums_, drawn_, seed, epoch);
  }
  auto samples = samples_(dataset_size, epoch);
  if (samples.empty()) {
    throw InvalidArgument(fmt::format("order \"{}\" gives no samples for epoch {}", text_, epoch));
  }
  const auto outside = std::find_if(samples.begin(), samples.end(), [&](std::int64_t sample) {
    return sample < 0 || sample >= dataset_size;
  });
  if (outside != samples.end()) {
    throw InvalidArgument(
        fmt::format("order \"{}\" gives sample {} in epoch {}: the data set has {}", text_,
                    *outside, epoch, dataset_size));
  }
  return samples;
}

std::int64_t epoch_steps(std::int64_t samples, std::int64_t batch) {
  if (samples < 1 || batch < 1) {
    throw InvalidArgument(fmt::format(
        "steps of {} samples in an epoch of {}: both must be 1 or more", batch, samples));
  }
  return (samples - 1) / batch + 1;
}

}  // namespace tutti
