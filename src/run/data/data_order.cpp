#include "run/data/data_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"
#include "kernels/hash.h"
#include "tutti/error.h"

namespace tutti {

std::vector<std::int64_t> permutation_of(std::int64_t size, std::uint64_t seed,
                                         std::int64_t epoch) {
  const std::uint64_t words[] = {seed, static_cast<std::uint64_t>(epoch)};
  std::mt19937_64 random(digest(words, sizeof words));
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t n = order.size(); n > 1; --n) {
    // Beyond the last multiple of n some remainders would come up once more than others.
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t limit = kMost - kMost % n;
    std::uint64_t draw = random();
    while (draw >= limit) draw = random();
    std::swap(order[n - 1], order[draw % n]);
  }
  return order;
}

void DataOrder::check(const DataRequest& request) const {
  if (request.dataset_size < 1 || request.batch < 1) {
    throw InvalidArgument(
        fmt::format("{} samples per shard of a data set of {}: both must be 1 or more",
                    request.batch, request.dataset_size));
  }
  if (position_.taken > 0 && request.dataset_size != position_.dataset_size) {
    throw InvalidArgument(fmt::format(
        "the data set has {} samples, but epoch {} began with {}, of which {} are "
        "taken: a data set may change between epochs only",
        request.dataset_size, position_.epoch, position_.dataset_size, position_.taken));
  }
}

std::vector<std::int64_t> DataOrder::indices(const DataRequest& request, std::int64_t shard) {
  check(request);
  TUTTI_CHECK(shard >= 0, "samples of shard {}", shard);
  const auto rest = left(request.dataset_size);
  if (shard > rest / request.batch) return {};  // before the product could overflow
  const auto begin = position_.taken + shard * request.batch;
  const auto count = std::min(request.batch, rest - shard * request.batch);
  if (order_.is_sequential()) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), begin);
    return samples;
  }
  const auto first = samples(request.dataset_size).begin() + begin;
  return {first, first + count};
}

void DataOrder::advance(const DataRequest& request, std::int64_t shards) {
  check(request);
  TUTTI_CHECK(shards >= 1, "a step of {} shards", shards);
  if (shards > (left(request.dataset_size) - 1) / request.batch) {  // shards · batch ≥ left
    position_ = {position_.epoch + 1, 0, 0};
    return;
  }
  position_.taken += shards * request.batch;
  position_.dataset_size = request.dataset_size;
}

void DataOrder::restore(const DataPosition& position) {
  const auto& [epoch, taken, size] = position;
  const bool is_start = taken == 0 && size == 0;
  const bool is_inside =
      0 < taken && 0 < size && taken < order_.epoch_size(size).value_or(taken + 1);
  if (epoch < 0 || !(is_start || is_inside)) {
    throw InvalidArgument(fmt::format("no position in a data set: epoch {}, {} of {} samples taken",
                                      epoch, taken, size));
  }
  position_ = position;
}

/// The samples of the current epoch, in order.
const std::vector<std::int64_t>& DataOrder::samples(std::int64_t dataset_size) {
  if (!epoch_ || epoch_->number != position_.epoch || epoch_->dataset_size != dataset_size) {
    auto samples = order_.of_epoch(dataset_size, seed_, position_.epoch);
    std::uint64_t own = 0;
    if (!order_.epoch_size(dataset_size)) {
      own = std::max<std::uint64_t>(digest(samples.data(), samples.size() * sizeof samples[0]), 1);
    }
    epoch_ = std::make_shared<const Epoch>(
        Epoch{position_.epoch, dataset_size, std::move(samples), own});
  }
  return epoch_->samples;
}

/// Samples of this epoch that no step has taken: at least one.
std::int64_t DataOrder::left(std::int64_t dataset_size) {
  const auto known = order_.epoch_size(dataset_size);
  const auto size = known ? *known : static_cast<std::int64_t>(samples(dataset_size).size());
  if (position_.taken < size) return size - position_.taken;
  throw InvalidArgument(
      fmt::format("epoch {} in the order \"{}\" has {} samples, of which {} are taken already",
                  position_.epoch, order_.text(), size, position_.taken));
}

}  // namespace tutti
