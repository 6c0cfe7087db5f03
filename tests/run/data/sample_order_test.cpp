// Orders of samples: what an epoch holds, whoever asks.

#include "tutti/sample_order.h"
#include "support/text_of.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "run/data/data_order.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;
using Indices = std::vector<std::int64_t>;

// promise: sample_order.h#SampleOrder, sample_order.h#of_epoch, sample_order.h#sequential
TEST(SampleOrder, IsShuffledUnlessSaidOtherwise) {
  EXPECT_EQ(SampleOrder().of_epoch(8, 1, 0), permutation_of(8, 1, 0));
  EXPECT_EQ(SampleOrder::shuffled().text(), SampleOrder().text());
  EXPECT_THAT(SampleOrder::sequential().of_epoch(3, 1, 7), ElementsAre(0, 1, 2));
  EXPECT_FALSE(SampleOrder().is_sequential());
}

// promise: sample_order.h#SampleOrder, sample_order.h#weighted
TEST(SampleOrder, WeightsDecideHowOftenASampleIsDrawn) {
  const auto order = SampleOrder::weighted({1, 0, 3, 0.5, 0}, 9000);
  const auto samples = order.of_epoch(5, 3, 0);
  EXPECT_EQ(samples.size(), 9000U);
  EXPECT_EQ(order.epoch_size(5), 9000);
  std::vector<double> counts(5);
  for (const auto sample : samples) ++counts[static_cast<std::size_t>(sample)];
  EXPECT_EQ(counts[1] + counts[4], 0);
  EXPECT_NEAR(counts[0], 2000, 200);  // 5 standard deviations
  EXPECT_NEAR(counts[2], 6000, 225);
  EXPECT_NEAR(counts[3], 1000, 150);
  EXPECT_EQ(order.of_epoch(5, 3, 0), samples);
  EXPECT_NE(order.of_epoch(5, 3, 1), samples);
  EXPECT_NE(order.of_epoch(5, 4, 0), samples);
  EXPECT_THAT(SampleOrder::weighted({0, 0, 1e-300}, 20).of_epoch(3, 0, 0), Each(2));
}

// promise: sample_order.h#text
TEST(SampleOrder, TextsTellOrdersApart) {
  const std::set<std::string> texts = {
      SampleOrder().text(),
      SampleOrder::sequential().text(),
      SampleOrder::weighted({1, 2}, 4).text(),
      SampleOrder::weighted({1, 2}, 5).text(),
      SampleOrder::weighted({2, 1}, 4).text(),
      SampleOrder("mine", [](auto, auto) { return Indices{0}; }).text()};
  EXPECT_EQ(texts.size(), 6U);
  EXPECT_THAT(texts, IsSupersetOf({"shuffled", "sequential", "mine"}));
  EXPECT_THAT(SampleOrder::weighted({1, 2}, 4).text(),
              MatchesRegex("weighted, 4 of 2 samples, weights [0-9a-f]+"));
  EXPECT_EQ(SampleOrder::weighted({1, 2}, 4).text(), SampleOrder::weighted({1, 2}, 4).text());
}

// promise: sample_order.h#epoch_size
TEST(SampleOrder, TellsHowManySamplesAnEpochHasWhereItDecides) {
  EXPECT_EQ(SampleOrder().epoch_size(7), 7);
  EXPECT_EQ(SampleOrder::sequential().epoch_size(7), 7);
  EXPECT_EQ(SampleOrder::weighted({1, 2}, 4).epoch_size(2), 4);
  EXPECT_EQ(SampleOrder("mine", [](auto, auto) { return Indices{0}; }).epoch_size(7), std::nullopt);
}

/// Indices of a step's shards, one after another.
Indices indices_of_step(DataOrder& order, const DataRequest& request, std::int64_t shards) {
  Indices step;
  for (std::int64_t s = 0; s < shards; ++s) {
    const auto samples = order.indices(request, s);
    step.insert(step.end(), samples.begin(), samples.end());
  }
  order.advance(request, shards);
  return step;
}

// promise: sample_order.h#SampleOrder
TEST(SampleOrder, AnEpochOfOnesOwnMayHaveAnyLength) {
  const SampleOrder own("grows", [](std::int64_t size, std::int64_t epoch) {
    Indices samples(static_cast<std::size_t>(size - 1 + epoch * 3));
    std::iota(samples.begin(), samples.end(), epoch);
    for (auto& sample : samples) sample %= size;
    return samples;
  });
  DataOrder order(1, own);
  EXPECT_THAT(indices_of_step(order, {4, 1}, 2), ElementsAre(0, 1));
  EXPECT_THAT(indices_of_step(order, {4, 1}, 2), ElementsAre(2));
  EXPECT_THAT(indices_of_step(order, {4, 2}, 2), ElementsAre(1, 2, 3, 0));
  EXPECT_EQ(order.position(), (DataPosition{1, 4, 4}));
  DataOrder again(1, own);
  again.restore(order.position());
  EXPECT_THAT(indices_of_step(again, {4, 2}, 2), ElementsAre(1, 2));
  EXPECT_EQ(again.position().epoch, 2);
}

TEST(SampleOrder, WeightedEpochsLongerThanTheDataSetAreCutIntoSteps) {
  const auto weighted = SampleOrder::weighted({1, 1, 2}, 7);
  DataOrder order(5, weighted);
  Indices all;
  while (order.position().epoch == 0) {
    for (const auto sample : indices_of_step(order, {3, 2}, 2)) all.push_back(sample);
    DataOrder again(5, weighted);
    again.restore(order.position());  // also beyond the data set's size
  }
  EXPECT_EQ(all, weighted.of_epoch(3, 5, 0));
}

// promise: sample_order.h#SampleOrder
TEST(SampleOrder, AFunctionThatForgotWhatItGaveIsFound) {
  std::int64_t length = 6;
  DataOrder order(1, SampleOrder("shrinks", [&](auto, auto) {
                    return Indices(static_cast<std::size_t>(length), 0);
                  }));
  indices_of_step(order, {3, 2}, 2);
  length = 3;
  DataOrder again(1, SampleOrder("shrinks", [&](auto, auto) {
                    return Indices(static_cast<std::size_t>(length), 0);
                  }));
  again.restore(order.position());
  EXPECT_EQ(text_of([&] {
              again.indices({3, 2}, 0);
            }),
            "epoch 0 in the order \"shrinks\" has 3 samples, of which 4 are taken already");
}

// promise: sample_order.h#SampleOrder, sample_order.h#of_epoch, sample_order.h#weighted
TEST(SampleOrder, WhatMakesNoSenseIsRefused) {
  EXPECT_THAT(text_of([] {
                SampleOrder::weighted({1, -1}, 2);
              }),
              HasSubstr("sample 1 has the weight -1"));
  for (const double weight : {INFINITY, NAN}) {
    EXPECT_THAT(text_of([&] {
                  SampleOrder::weighted({weight, 1}, 2);
                }),
                HasSubstr("sample 0 has the weight"));
  }
  EXPECT_THAT(text_of([] { SampleOrder::weighted({0, 0}, 2); }), HasSubstr("positive, finite sum"));
  EXPECT_THAT(text_of([] {
                SampleOrder::weighted({1e308, 1e308}, 2);
              }),
              HasSubstr("positive, finite sum"));
  EXPECT_THAT(text_of([] { SampleOrder::weighted({1}, 0); }), HasSubstr("at least 1"));
  EXPECT_THAT(text_of([] {
                SampleOrder::weighted({1, 1}, 2).of_epoch(3, 0, 0);
              }),
              HasSubstr("2 weights for a data set of 3 samples"));
  EXPECT_THAT(text_of([] { SampleOrder("", [](auto, auto) { return Indices{0}; }); }),
              HasSubstr("a name and a function"));
  EXPECT_THAT(text_of([] { SampleOrder("mine", {}); }), HasSubstr("a name and a function"));
  EXPECT_EQ(text_of([] { SampleOrder().of_epoch(0, 1, 0); }), "epoch 0 of a data set of 0 samples");
  EXPECT_EQ(text_of([] { SampleOrder().of_epoch(9, 1, -1); }),
            "epoch -1 of a data set of 9 samples");
  const SampleOrder outside("mine", [](auto, auto) { return Indices{0, 5}; });
  EXPECT_THAT(text_of([&] { outside.of_epoch(5, 0, 2); }),
              HasSubstr("order \"mine\" gives sample 5 in epoch 2: the data set has 5"));
  const SampleOrder empty("mine", [](auto, auto) { return Indices{}; });
  EXPECT_THAT(text_of([&] { empty.of_epoch(5, 0, 2); }), HasSubstr("gives no samples for epoch 2"));
}

// promise: sample_order.h#epoch_steps
TEST(SampleOrder, StepsOfAnEpochCountTheLastOneThatIsNotWhole) {
  EXPECT_EQ(epoch_steps(64, 64), 1);
  EXPECT_EQ(epoch_steps(65, 64), 2);
  EXPECT_EQ(epoch_steps(1, 64), 1);
  EXPECT_EQ(epoch_steps(std::int64_t{1} << 62, 1), std::int64_t{1} << 62);
  EXPECT_THAT(text_of([] { epoch_steps(0, 4); }), HasSubstr("must be 1 or more"));
  EXPECT_THAT(text_of([] { epoch_steps(4, 0); }), HasSubstr("must be 1 or more"));
}

}  // namespace
}  // namespace tutti::test
