#include "run/numbers/metric_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>

#include "base/check.h"
#include "sync/plan/assignment.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Bytes = std::vector<std::byte>;
using Shards = std::vector<ShardMetrics>;

/// What shard s records, as plain numbers: absent where it records nothing.
struct Sample {
  std::optional<std::vector<double>> values;
  double weight = 1;
};

std::vector<Sample> random_samples(std::size_t shards, std::uint64_t seed, unsigned absent_in_8) {
  std::mt19937_64 random(seed);
  std::vector<Sample> samples(shards);
  for (auto& sample : samples) {
    if (random() % 8 < absent_in_8) continue;
    sample.values.emplace(1 + random() % 3);
    // Of very different size, so that another order of addition shows in the bits.
    for (auto& v : *sample.values) {
      v = std::normal_distribution<>()(random) * std::ldexp(1, static_cast<int>(random() % 40));
    }
    sample.weight = 0.1 + static_cast<double>(random() % 100);
  }
  return samples;
}

Shards recorded(const std::vector<Sample>& samples) {
  Shards shards(samples.size());
  for (std::size_t s = 0; s < samples.size(); ++s) {
    if (!samples[s].values) continue;
    for (const double v : *samples[s].values) {
      shards[s].sum("sum", v);
      shards[s].mean("mean", v);
      shards[s].weighted_mean("weighted", v, samples[s].weight);
      shards[s].max("max", v);
      shards[s].min("min", v);
      shards[s].product("product", v);
      shards[s].all("all", v > -1e6);
      shards[s].any("any", v > 1e9);
      shards[s].gather("gather", v);
    }
  }
  return shards;
}

using Partial = std::optional<double>;

/// The definition: value(v) per record in order, then shards [begin, end) along the tree; absent
/// ones vanish.
template <class Value, class Combine>
Partial model(const std::vector<Sample>& samples, std::size_t begin, std::size_t end,
              const Value& value, const Combine& combine) {
  Partial result;
  if (end - begin == 1) {
    const auto& sample = samples[begin];
    for (const double v : sample.values.value_or(std::vector<double>{})) {
      const double x = value(v, sample.weight);
      result = result ? combine(*result, x) : x;
    }
    return result;
  }
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  const auto left = model(samples, begin, middle, value, combine);
  const auto right = model(samples, middle, end, value, combine);
  if (!left || !right) return left ? left : right;
  return combine(*left, *right);
}

std::vector<std::uint64_t> bits_of(const Metrics& metrics) {
  std::vector<std::uint64_t> bits;
  for (const auto& metric : metrics) {
    bits.push_back(std::bit_cast<std::uint64_t>(metric.value));
    for (const double v : metric.values) bits.push_back(std::bit_cast<std::uint64_t>(v));
  }
  return bits;
}

// promise: metrics.h#Metrics, numerics#what-the-bits-may-depend-on-and-what-not, trainer.h#metrics
TEST(MetricExchange, EveryKindIsTheScalarTree) {
  const auto value = [](double v, double) { return v; };
  const auto weighted = [](double v, double w) { return w * v; };
  const auto weight = [](double, double w) { return w; };
  const auto one = [](double, double) { return 1.0; };
  const auto plus = [](double a, double b) { return a + b; };
  const auto times = [](double a, double b) { return a * b; };
  for (const std::size_t shards : {1, 2, 3, 5, 8, 63, 64, 65, 130, 1000}) {
    const auto samples = random_samples(shards, shards, shards % 2 ? 3 : 0);
    const auto tree = [&](const auto& of, const auto& combine) {
      return *model(samples, 0, shards, of, combine);
    };
    if (!model(samples, 0, shards, value, plus)) continue;
    const auto metrics = reduce(recorded(samples));
    EXPECT_EQ(metrics["sum"], tree(value, plus)) << shards;
    EXPECT_EQ(metrics["mean"], tree(value, plus) / tree(one, plus)) << shards;
    EXPECT_EQ(metrics["weighted"], tree(weighted, plus) / tree(weight, plus)) << shards;
    EXPECT_EQ(metrics["product"], tree(value, times)) << shards;
    std::vector<double> all;
    for (const auto& s : samples) {
      if (s.values) all.insert(all.end(), s.values->begin(), s.values->end());
    }
    EXPECT_EQ(metrics["max"], *std::ranges::max_element(all));
    EXPECT_EQ(metrics["min"], *std::ranges::min_element(all));
    EXPECT_EQ(metrics["all"], std::ranges::all_of(all, [](double v) { return v > -1e6; }));
    EXPECT_EQ(metrics["any"], std::ranges::any_of(all, [](double v) { return v > 1e9; }));
    EXPECT_EQ(metrics.gathered("gather"), all);
  }
}

// Otherwise the test above would pass for any order.
// promise: metrics.h#Metrics, numerics#what-the-bits-may-depend-on-and-what-not
TEST(MetricExchange, AFoldFromTheLeftIsAnotherNumber) {
  const auto samples = random_samples(65, 1, 0);
  std::optional<double> left;
  for (const auto& sample : samples) {
    const double own =
        std::accumulate(sample.values->begin() + 1, sample.values->end(), sample.values->front());
    left = left ? *left + own : own;
  }
  EXPECT_NE(reduce(recorded(samples))["sum"], *left);
}

/// What every worker reads: each worker's bytes, in rank order.
Shards exchanged(const Shards& shards, const std::vector<ShardRange>& ranges) {
  Shards all;
  for (const auto& range : ranges) {
    const auto own = std::span(shards).subspan(static_cast<std::size_t>(range.begin),
                                               static_cast<std::size_t>(range.count()));
    for (auto& shard : unpack(packed(own))) all.push_back(std::move(shard));
  }
  return all;
}

// promise: metrics.h#Metrics, trainer.h#StepResult
TEST(MetricExchange, AnySharingOfShardsGivesTheSameBytes) {
  std::mt19937 random(5);
  const auto up_to = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(1, most)(random);
  };
  for (const std::int64_t shards : {1, 2, 5, 8, 63, 65, 130}) {
    const auto records =
        recorded(random_samples(static_cast<std::size_t>(shards), 7, shards % 2 ? 2 : 0));
    const auto expected = bits_of(reduce(records));
    for (const int workers : {1, 2, 3, 5, 8}) {
      EXPECT_EQ(bits_of(reduce(exchanged(records, assign_shards(shards, workers)))), expected);
      std::vector<ShardRange> ranges;
      for (std::int64_t begin = 0; begin < shards; begin = ranges.back().end) {
        ranges.push_back({begin, begin + up_to(shards - begin)});
      }
      EXPECT_EQ(bits_of(reduce(exchanged(records, ranges))), expected);
    }
  }
}

TEST(MetricExchange, SwappedShardsAreAnotherNumber) {
  auto shards = recorded(random_samples(9, 3, 0));
  const auto expected = bits_of(reduce(shards));
  std::swap(shards[2], shards[5]);
  EXPECT_NE(bits_of(reduce(shards)), expected);
}

// promise: metrics.h#of
TEST(MetricExchange, BytesHoldEverythingThatWasRecorded) {
  Shards shards(5);
  shards[1].sum("a long name that lives in memory of its own", 1e300);
  shards[1].weighted_mean("µ", -0.0, 0.5);
  shards[1].mean("µ", INFINITY);
  shards[3].gather("many", std::vector<double>(1000, 0.1));
  shards[3].gather("none", std::vector<double>{});
  const auto copies = exchanged(shards, {{0, 2}, {2, 2}, {2, 5}});
  ASSERT_EQ(copies.size(), shards.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    EXPECT_EQ(copies[s].records(), shards[s].records());
  }
}

TEST(MetricExchange, TooLittleRoomIsAnErrorThatSaysHowMuchIsNeeded) {
  Shards shards(2);
  shards[0].gather("x", std::vector<double>(10));
  const auto needed = packed(shards).size();
  EXPECT_EQ(needed, 8 + 24 + 1 + 80 + 8u);
  Bytes area(needed + 3, std::byte{9});
  EXPECT_EQ(pack(shards, area), needed);
  EXPECT_EQ(area[needed], std::byte{9});
  Bytes small(needed - 1, std::byte{9});
  EXPECT_THAT([&] { pack(shards, small); }, ThrowsMessage<InvalidArgument>(HasSubstr(
                                                "2 shards need 121 bytes, and there is room for "
                                                "120")));
  EXPECT_EQ(small, Bytes(needed - 1, std::byte{9}));
}

TEST(MetricExchange, CutOrAlteredBytesAreNotTakenForRecords) {
  Shards shards(2);
  shards[0].sum("x", 1);
  shards[1].gather("y", 2);
  const auto whole = packed(shards);
  for (std::size_t size = 1; size < whole.size(); ++size) {
    if (size == packed(std::span(shards).first(1)).size()) continue;  // a worker with one shard
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(unpack(cut), InternalError) << size;
  }
  for (const std::size_t at : {8, 16, 24}) {  // kind, length of the name, number of doubles
    auto altered = whole;
    altered[at + 7] = std::byte{0xff};
    EXPECT_THROW(unpack(altered), InternalError) << at;
  }
  auto two_values = whole;
  two_values[8] = std::byte{1};  // a sum of one double says that it is a mean
  EXPECT_THAT([&] { unpack(two_values); },
              ThrowsMessage<InternalError>(HasSubstr("1 values of metric \"x\"")));
}

}  // namespace
}  // namespace tutti::test
