#include "tutti/memory_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <random>

#include "run/planning/memory_search.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LayerMemory layer(std::uint64_t inside, std::uint64_t result, double ms = 1) {
  return {.name = "layer",
          .inside = inside,
          .result = result,
          .forward_peak = inside + result,
          .forward_ms = ms};
}

// promise: memory_plan.h#MemoryPlan, memory_plan.h#MemorySegment, memory_plan.h#peak_of
TEST(MemoryPlan, APeakIsWhatLiesBeforeASegmentAndTheSegmentItself) {
  const std::vector<LayerMemory> layers(3, layer(10, 2));
  // Plainly: three insides, two inputs between them, the last result and its gradient.
  EXPECT_EQ(peak_of(layers, std::vector<MemorySegment>{{0, 3, false}}), 3 * 10 + 2 * 2 + 2 * 2);
  // The first two again: their input is the program's, who has the last result, too; behind them 2
  // are kept for the third.
  EXPECT_EQ(peak_of(layers, std::vector<MemorySegment>{{0, 2, true}, {2, 3, false}}),
            2 * 10 + 2 + 2 + 2 + 2);
  // All in one: plainly, and the gradient of the result, which is there from the beginning on.
  EXPECT_EQ(peak_of(layers, std::vector<MemorySegment>{{0, 3, true}}), 3 * 10 + 2 * 2 + 2 * 2 + 2);
  // Each by itself: two inputs, and one inside with its result and that one's gradient.
  EXPECT_EQ(peak_of(layers, std::vector<MemorySegment>{{0, 1, true}, {1, 2, true}, {2, 3, true}}),
            2 * 2 + 10 + 2 + 2 + 2);
}

// promise: memory_plan.h#MemorySegment
TEST(MemoryPlan, GradientsOfParametersOfASegmentAreThereTogether) {
  std::vector<LayerMemory> layers(2, layer(1, 1));
  for (auto& one : layers) one.gradients = one.largest_gradient = 100;
  EXPECT_EQ(peak_of(layers, std::vector<MemorySegment>{{0, 2, true}}), 200 + 1 + 1 + 1 + 1 + 1);
  EXPECT_EQ(peak_of(layers, std::vector<MemorySegment>{{0, 2, false}}), 100 + 1 + 1 + 2 + 1);
}

// promise: memory_plan.h#peak_of
TEST(MemoryPlan, SegmentsThatLeaveALayerOutAreRefused) {
  const std::vector<LayerMemory> layers(3, layer(10, 2));
  const auto text_of = [&](const std::vector<MemorySegment>& segments) -> std::string {
    try {
      peak_of(layers, segments);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text_of({{0, 2, true}}), HasSubstr("no segment has layer 2 of 3"));
  EXPECT_THAT(text_of({{0, 1, true}, {2, 3, true}}), HasSubstr("[2, 3) after layer 1 of 3"));
  EXPECT_THAT(text_of({{0, 4, true}}), HasSubstr("[0, 4) after layer 0 of 3"));
}

/// All ways to cut [first, n) into plain layers and segments that run again.
void each_plan(std::int64_t first, std::int64_t n, std::vector<MemorySegment>& segments,
               const std::function<void(const std::vector<MemorySegment>&)>& visit) {
  if (first == n) return visit(segments);
  for (auto last = first + 1; last <= n; ++last) {
    for (const bool again : {false, true}) {
      if (!again && last > first + 1) continue;
      segments.push_back({first, last, again});
      each_plan(last, n, segments, visit);
      segments.pop_back();
    }
  }
}

// promise: memory_plan.h#MemoryPlan, memory_plan.h#plan_memory
TEST(MemoryPlan, IsTheQuickestOfAllThatFit) {
  std::mt19937 random(1);
  const auto draw = [&](std::uint64_t most) { return random() % (most + 1); };
  int unmet = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<LayerMemory> layers;
    const auto n = 1 + draw(5);
    for (std::uint64_t i = 0; i < n; ++i) {
      layers.push_back({.name = "layer",
                        .inside = draw(20),
                        .result = draw(5),
                        .keeps_input = draw(1) == 1,
                        .keeps_result = draw(1) == 1,
                        .forward_peak = draw(25),
                        .backward_peak = draw(8),
                        .gradients = draw(6),
                        .largest_gradient = draw(3),
                        .forward_ms = static_cast<double>(1 + draw(3))});
    }
    const auto budget = 20 + draw(60);
    double quickest = std::numeric_limits<double>::infinity();
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    std::vector<MemorySegment> segments;
    each_plan(0, static_cast<std::int64_t>(n), segments, [&](const auto& all) {
      const auto peak = peak_of(layers, all);
      least = std::min(least, peak);
      if (peak > budget) return;
      double ms = 0;
      for (const auto& one : all) {
        for (auto i = one.first; one.again && i < one.last; ++i) {
          ms += layers[static_cast<std::size_t>(i)].forward_ms;
        }
      }
      quickest = std::min(quickest, ms);
    });
    if (least > budget) {
      ++unmet;
      EXPECT_THROW(plan_memory(layers, budget), InvalidArgument);
      continue;
    }
    const auto plan = plan_memory(layers, budget);
    EXPECT_LE(peak_of(layers, plan.segments), budget);
    EXPECT_EQ(plan.peak, peak_of(layers, plan.segments));
    EXPECT_EQ(plan.added_ms, quickest);
    EXPECT_EQ(plan.least_peak, least);
  }
  EXPECT_GT(unmet, 3);
  EXPECT_LT(unmet, 40);
}

// promise: memory_plan.h#MemoryBudget, memory_plan.h#budget_of_share
TEST(MemoryPlan, OfManyEqualLayersHasAboutTheRootOfThemAsSegments) {
  const std::vector<LayerMemory> layers(36, layer(8, 8));
  const auto least = budget_of_share(layers, 0);
  const auto plan = plan_memory(layers, least);
  EXPECT_LE(plan.segments.size(), 16U);
  EXPECT_GE(plan.segments.size(), 4U);
  EXPECT_LT(plan.peak, plan.plain_peak / 2);
  const auto half = plan_memory(layers, budget_of_share(layers, 0.5));
  EXPECT_LT(half.added_ms, plan.added_ms);
  EXPECT_GT(half.added_ms, 0);
  EXPECT_EQ(plan_memory(layers, budget_of_share(layers, 1)).added_ms, 0);
}

// promise: memory_plan.h#budget_of_share, memory_plan.h#plan_memory
TEST(MemoryPlan, ABudgetThatCannotBeMetNamesTheLeast) {
  const std::vector<LayerMemory> layers(4, layer(10'000'000, 1'000'000));
  try {
    plan_memory(layers, 5'000'000);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("a memory budget of 5.00 MB: a step of these 4 layers needs 15.00 "
                                "MB at least, with what runs again, and 45.00 MB without")));
  }
  EXPECT_THROW(budget_of_share(layers, 1.1), InvalidArgument);
  EXPECT_THROW(budget_of_share(layers, -0.1), InvalidArgument);
  EXPECT_THROW(budget_of_share(layers, std::numeric_limits<double>::quiet_NaN()), InvalidArgument);
}

// promise: memory_plan.h#text
TEST(MemoryPlan, IsShownAsATable) {
  std::vector<LayerMemory> layers(4, layer(10'000'000, 1'000'000, 2));
  layers[1].name = "attention";
  auto plan = plan_memory(layers, 30'000'000);
  plan.measured_peak = 29'500'000;
  EXPECT_THAT(plan.text(), AllOf(HasSubstr("attention"), HasSubstr("again"),
                                 HasSubstr("45.00 where nothing runs again"),
                                 HasSubstr("measured 29.50 MB of 30.00 allowed")));
  const auto is_chosen = [&](const MemoryPoint& point) {
    return point.peak == plan.peak && point.added_ms == plan.added_ms;
  };
  EXPECT_TRUE(std::ranges::any_of(plan.curve, is_chosen)) << "the chosen plan is on the curve";
  ASSERT_GE(plan.curve.size(), 2U);
  for (std::size_t p = 1; p < plan.curve.size(); ++p) {
    EXPECT_GT(plan.curve[p].peak, plan.curve[p - 1].peak);
    EXPECT_LT(plan.curve[p].added_ms, plan.curve[p - 1].added_ms);
  }
  EXPECT_EQ(plan.curve.back().added_ms, 0);
}

TEST(MemoryPlan, OfNoLayersIsEmpty) {
  const auto plan = plan_memory({}, 0);
  EXPECT_TRUE(plan.segments.empty());
  EXPECT_EQ(plan.peak, 0U);
}

}  // namespace
}  // namespace tutti::test
