// When the averaging policies are due, and which numbers they take.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/averaging.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The steps of 1 … `last` in which that bucket of three is due.
std::vector<std::int64_t> steps_of(const AveragingPolicy& averaging, std::int64_t bucket,
                                   std::int64_t last = 9) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= last; ++step)
    if (averaging.due(step, bucket, 3)) steps.push_back(step);
  return steps;
}

std::string refusal(const std::function<void()>& make) {
  try {
    make();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "taken";
}

TEST(AveragingPolicies, AreDueAsTheyAreAskedTo) {
  EXPECT_THAT(steps_of(*partial_update(), 0), ElementsAre(1, 4, 7));
  EXPECT_THAT(steps_of(*partial_update(), 2), ElementsAre(3, 6, 9));
  for (const std::int64_t bucket : {0, 2}) {
    EXPECT_THAT(steps_of(*local_sgd(4), bucket), ElementsAre(4, 8));
    EXPECT_THAT(steps_of(*local_sgd(3, 2), bucket), ElementsAre(1, 2, 5, 8));
    EXPECT_THAT(steps_of(*block_momentum(3, 2), bucket), ElementsAre(1, 2, 5, 8));
  }
  EXPECT_THAT(steps_of(*local_sgd(10), 1), IsEmpty());
}

TEST(AveragingPolicies, LeaveTheMeanUnlessTheyDoOtherwise) {
  std::vector<double> values = {1, 2, 3};
  local_sgd(4)->combine({.values = values, .before = {}, .states = {}});
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
  EXPECT_EQ(local_sgd(4)->states(), 0);
  EXPECT_EQ(partial_update()->states(), 0);
  EXPECT_EQ(block_momentum(4)->states(), 1);
}

// η = 1 − 1/L where none is given.
TEST(AveragingPolicies, BlockMomentumDependsOnTheNumberOfLogicalWorkers) {
  const std::vector<double> before = {1, 1};
  std::vector<double> kept = {4, 0};
  std::vector<double> values = {3, 3};
  block_momentum(2)->combine(
      {.values = values, .before = before, .logical_workers = 4, .states = {kept}});
  EXPECT_THAT(kept, ElementsAre(0.75 * 4 + 2, 2));
  EXPECT_THAT(values, ElementsAre(1 + 5, 1 + 2));
}

TEST(AveragingPolicies, NumbersThatMakeNoSenseAreRefused) {
  EXPECT_THAT(refusal([] { local_sgd(0); }), HasSubstr("the period must be at least 1"));
  EXPECT_THAT(refusal([] { local_sgd(2, -1); }), HasSubstr("-1 steps of warm-up"));
  EXPECT_THAT(refusal([] { block_momentum(0); }), HasSubstr("the period must be at least 1"));
  for (const double bad : {-0.5, 1.0, double{NAN}})
    EXPECT_THAT(refusal([&] { block_momentum(2, 0, {.momentum = bad}); }), HasSubstr("below 1"));
  for (const double bad : {0.0, -1.0, double{NAN}, double{INFINITY}})
    EXPECT_THAT(refusal([&] { block_momentum(2, 0, {.rate = bad}); }), HasSubstr("above 0"));
}

TEST(AveragingPolicies, NamesAreReadAndTellThemApart) {
  EXPECT_EQ(averaging_policy_of("every-step"), nullptr);
  EXPECT_EQ(averaging_policy_of("partial")->name(), "partial");
  EXPECT_EQ(averaging_policy_of("local-sgd:16")->name(), "local-sgd:16");
  EXPECT_EQ(averaging_policy_of("bmuf:16")->name(), "bmuf:16, momentum 1 − 1/L, rate 1");
  EXPECT_NE(local_sgd(16, 2)->name(), local_sgd(16)->name());
  EXPECT_NE(block_momentum(16, 0, {.nesterov = true})->name(), block_momentum(16)->name());
  for (const char* text : {"", "local-sgd", "local-sgd:", "local-sgd:2x", "bmuf:x", "partial:2"})
    EXPECT_THAT(refusal([&] { averaging_policy_of(text); }),
                HasSubstr("there are every-step, partial, local-sgd:K and bmuf:K"))
        << text;
  EXPECT_EQ(name_of(StateAtAveraging::keep), "keep");
  EXPECT_EQ(name_of(StateAtAveraging::average), "average");
  EXPECT_EQ(name_of(StateAtAveraging::reset), "reset");
}

}  // namespace
}  // namespace tutti::test
