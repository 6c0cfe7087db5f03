// What shards record and what a step's metrics answer.

#include "tutti/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "run/numbers/metric_exchange.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// promise: metrics.h#all, metrics.h#any, metrics.h#gather
TEST(Metrics, EveryKindOverTwoShards) {
  std::vector<ShardMetrics> shards(3);
  shards[0].sum("sum", 3);
  shards[2].sum("sum", 4.5);
  shards[0].mean("mean", 1);
  shards[2].mean("mean", 4);
  shards[0].weighted_mean("weighted", 1, 3);
  shards[2].weighted_mean("weighted", 5, 1);
  shards[0].max("max", -3);
  shards[2].max("max", -2);
  shards[0].min("min", -3);
  shards[2].min("min", -2);
  shards[0].product("product", -3);
  shards[2].product("product", 4);
  shards[0].all("all", true);
  shards[2].all("all", false);
  shards[0].any("any", true);
  shards[2].any("any", false);
  shards[0].all("all true", true);
  shards[2].any("any true", false);
  shards[2].gather("gather", std::vector<double>{7, 8});
  shards[0].gather("gather", 9);
  const auto metrics = reduce(shards);
  EXPECT_EQ(metrics["sum"], 7.5);
  EXPECT_EQ(metrics["mean"], 2.5);
  EXPECT_EQ(metrics["weighted"], 2);
  EXPECT_EQ(metrics["max"], -2);
  EXPECT_EQ(metrics["min"], -3);
  EXPECT_EQ(metrics["product"], -12);
  EXPECT_EQ(metrics["all"], 0);
  EXPECT_EQ(metrics["any"], 1);
  EXPECT_EQ(metrics["all true"], 1);
  EXPECT_EQ(metrics["any true"], 0);
  EXPECT_THAT(metrics.gathered("gather"), ElementsAre(9, 7, 8));
}

// promise: metrics.h#name_of
TEST(Metrics, KindsHaveNames) {
  EXPECT_EQ(name_of(MetricKind::sum), "sum");
  EXPECT_EQ(name_of(MetricKind::weighted_mean), "weighted_mean");
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(MetricKind::gather); ++kind)
    names.insert(name_of(static_cast<MetricKind>(kind)));
  EXPECT_EQ(names.size(), 9U);
}

// 0.1 · 3 and 0.2 · 3 are rounded before they are added.
// promise: metrics.h#weighted_mean
TEST(Metrics, EachProductOfAWeightIsRoundedOnce) {
  std::vector<ShardMetrics> shards(2);
  shards[0].weighted_mean("x", 0.1, 3);
  shards[1].weighted_mean("x", 0.2, 3);
  const volatile double one = 0.1 * 3;
  const volatile double other = 0.2 * 3;
  EXPECT_EQ(reduce(shards)["x"], (one + other) / 6);
}

// promise: metrics.h#of, metrics.h#partial, metrics.h#records
TEST(Metrics, RecordsAreInTheOrderOfTheirFirstCalls) {
  ShardMetrics shard;
  shard.sum("b", 1);
  shard.weighted_mean("a", 3, 0);
  shard.sum("b", 1);
  ASSERT_EQ(shard.records().size(), 2U);
  EXPECT_EQ(shard.records()[0].name, "b");
  EXPECT_EQ(shard.records()[0].partial[0], 2);
  EXPECT_EQ(shard.records()[1].name, "a");
  EXPECT_EQ(shard.records()[1].partial[1], 0) << "there is no weight";
  EXPECT_EQ(ShardMetrics::of(shard.records()).records(), shard.records());
}

// promise: metrics.h#ShardMetrics, metrics.h#clear, metrics.h#mean
TEST(Metrics, RecordingAgainAddsToWhatTheShardHas) {
  std::vector<ShardMetrics> shards(1);
  auto& shard = shards[0];
  for (const double value : {2.0, 5.0, 3.0}) {
    shard.sum("sum", value);
    shard.mean("mean", value);
    shard.weighted_mean("weighted", value, value);
    shard.max("max", value);
    shard.min("min", value);
    shard.product("product", value);
    shard.all("all", value < 4);
    shard.any("any", value > 4);
    shard.gather("gather", value);
  }
  const auto metrics = reduce(shards);
  EXPECT_EQ(metrics["sum"], 10);
  EXPECT_EQ(metrics["mean"], 10.0 / 3);
  EXPECT_EQ(metrics["weighted"], 3.8);
  EXPECT_EQ(metrics["max"], 5);
  EXPECT_EQ(metrics["min"], 2);
  EXPECT_EQ(metrics["product"], 30);
  EXPECT_EQ(metrics["all"], 0);
  EXPECT_EQ(metrics["any"], 1);
  EXPECT_THAT(metrics.gathered("gather"), ElementsAre(2, 5, 3));
  shard.clear();
  EXPECT_TRUE(reduce(shards).empty());
}

// The first value is taken as it is, not added to a zero: the sign of zero stays.
// promise: metrics.h#Metrics
TEST(Metrics, NothingIsAddedToAbsence) {
  std::vector<ShardMetrics> shards(5);
  shards[3].sum("sum", -0.0);
  shards[3].mean("mean", -0.0);
  const auto metrics = reduce(shards);
  EXPECT_TRUE(std::signbit(metrics["sum"]));
  EXPECT_TRUE(std::signbit(metrics["mean"]));
}

// promise: metrics.h#max
TEST(Metrics, NanShowsInExtremesWhereverItIs) {
  for (std::size_t at = 0; at < 6; ++at) {
    std::vector<ShardMetrics> shards(3);
    for (std::size_t i = 0; i < 6; ++i) {
      const double value = i == at ? NAN : static_cast<double>(i);
      shards[i / 2].max("max", value);
      shards[i / 2].min("min", value);
    }
    EXPECT_TRUE(std::isnan(reduce(shards)["max"])) << at;
    EXPECT_TRUE(std::isnan(reduce(shards)["min"])) << at;
  }
}

// promise: metrics.h#weighted_mean
TEST(Metrics, WhatHasNoWeightCountsForNothing) {
  std::vector<ShardMetrics> shards(3);
  shards[0].weighted_mean("loss", NAN, 0);
  shards[1].weighted_mean("loss", INFINITY, 0);
  shards[1].weighted_mean("loss", 4, 2);
  shards[1].weighted_mean("loss", NAN, 0);
  shards[2].weighted_mean("loss", 1, 1);
  shards[0].weighted_mean("none", 1, 0);
  shards[0].weighted_mean("zero", 1, 0);
  shards[1].weighted_mean("zero", -0.0, 1);
  const auto metrics = reduce(shards);
  EXPECT_EQ(metrics["loss"], 3);
  EXPECT_TRUE(std::isnan(metrics["none"]));
  EXPECT_TRUE(std::signbit(metrics["zero"]));
}

// promise: metrics.h#ShardMetrics, metrics.h#weighted_mean
TEST(Metrics, WeightsThatMakeNoSenseAreRefused) {
  ShardMetrics shard;
  const auto weighing = [&](double weight) {
    return [&shard, weight] { shard.weighted_mean("loss", 1, weight); };
  };
  EXPECT_THAT(weighing(-1),
              ThrowsMessage<InvalidArgument>(HasSubstr("\"loss\" is recorded with weight -1")));
  EXPECT_THAT(weighing(NAN), ThrowsMessage<InvalidArgument>(HasSubstr("weight nan")));
  EXPECT_THAT(weighing(INFINITY), ThrowsMessage<InvalidArgument>(HasSubstr("weight inf")));
  EXPECT_THAT(weighing(1e308), ThrowsMessage<InvalidArgument>(HasSubstr("weight 1e+308")));
  EXPECT_THAT([&] { shard.sum("", 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("without a name")));
  EXPECT_THAT(shard.records(), IsEmpty());
}

// promise: metrics.h#ShardMetrics
TEST(Metrics, NameWithTwoKindsIsAnErrorThatNamesIt) {
  std::vector<ShardMetrics> shards(4);
  shards[0].sum("tokens", 1);
  shards[1].mean("loss", 1);
  shards[3].sum("loss", 1);
  shards[3].mean("loss", 1);
  EXPECT_THAT([&] { reduce(shards); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "metric \"loss\" is recorded as mean by shard 1 and as sum by shard 3")));
  std::vector<ShardMetrics> one(1);
  one[0].mean("loss", 1);
  one[0].weighted_mean("loss", 1, 1);
  EXPECT_THAT([&] { reduce(one); }, ThrowsMessage<InvalidArgument>(HasSubstr(
                                        "as mean by shard 0 and as weighted_mean by shard 0")));
}

// promise: metrics.h#Metrics, metrics.h#at, metrics.h#gathered
TEST(Metrics, AnswersByNameAndInTheOrderOfNames) {
  std::vector<ShardMetrics> shards(2);
  shards[0].sum("tokens", 2);
  shards[1].sum("tokens", 3);
  shards[1].max("b", 1);
  shards[1].gather("a", std::vector<double>{});
  const auto metrics = reduce(shards);
  std::vector<std::string> names;
  std::vector<std::int64_t> recorded;
  for (const auto& metric : metrics) {
    names.push_back(metric.name);
    recorded.push_back(metric.shards);
  }
  EXPECT_THAT(names, ElementsAre("a", "b", "tokens"));
  EXPECT_THAT(recorded, ElementsAre(1, 1, 2));
  EXPECT_EQ(metrics.size(), 3u);
  EXPECT_TRUE(metrics.contains("tokens"));
  EXPECT_FALSE(metrics.contains("token"));
  EXPECT_THAT(metrics.gathered("a"), IsEmpty());
  EXPECT_THAT([&] { metrics.at("loss"); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "no shard recorded a metric \"loss\"; there is \"a\", \"b\", \"tokens\"")));
  EXPECT_THAT([&] { metrics["a"]; },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"a\" is gathered")));
  EXPECT_THAT([&] { metrics.gathered("b"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"b\" is of kind max: it has one value")));
  EXPECT_THAT([] { Metrics().at("x"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there is none")));
}

}  // namespace
}  // namespace tutti::test
