// When the averaging policies are due, what they make of a mean, and which numbers they take.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support/text_of.h"
#include "tutti/averaging.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
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

// promise: averaging.h#block_momentum, averaging.h#local_sgd, averaging.h#partial_update
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

// promise: averaging.h#combine, averaging.h#states
TEST(AveragingPolicies, LeaveTheMeanUnlessTheyDoOtherwise) {
  std::vector<double> values = {1, 2, 3};
  local_sgd(4)->combine({.values = values, .before = {}, .states = {}});
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
  EXPECT_EQ(local_sgd(4)->states(), 0);
  EXPECT_EQ(partial_update()->states(), 0);
  EXPECT_EQ(block_momentum(4)->states(), 1);
}

// η = 1 − 1/L where none is given.
// promise: averaging.h#block_momentum
TEST(AveragingPolicies, BlockMomentumDependsOnTheNumberOfLogicalWorkers) {
  const std::vector<double> before = {1, 1};
  std::vector<double> kept = {4, 0};
  std::vector<double> values = {3, 3};
  block_momentum(2)->combine(
      {.values = values, .before = before, .logical_workers = 4, .states = {kept}});
  EXPECT_THAT(kept, ElementsAre(0.75 * 4 + 2, 2));
  EXPECT_THAT(values, ElementsAre(1 + 5, 1 + 2));
}

// promise: averaging.h#diloco
TEST(AveragingPolicies, FragmentsOfDilocoAreDueInTurnOnceInAPeriod) {
  const auto six = diloco(6, {.fragments = 3, .warm_up = 0});
  EXPECT_EQ(six->fragments(), 3);
  EXPECT_THAT(steps_of(*six, 0, 14), ElementsAre(2, 8, 14));
  EXPECT_THAT(steps_of(*six, 1, 14), ElementsAre(4, 10));
  EXPECT_THAT(steps_of(*six, 2, 14), ElementsAre(6, 12));
  const auto seven = diloco(7, {.fragments = 3, .warm_up = 2});
  EXPECT_THAT(steps_of(*seven, 0, 16), ElementsAre(1, 2, 4, 11));
  EXPECT_THAT(steps_of(*seven, 1, 16), ElementsAre(1, 2, 6, 13));
  EXPECT_THAT(steps_of(*seven, 2, 16), ElementsAre(1, 2, 9, 16));
  for (std::int64_t step = 1; step <= 12; ++step) {
    EXPECT_EQ(diloco(4)->due(step, 0, 1), step <= 4 || step % 4 == 0) << step;
  }
  EXPECT_EQ(local_sgd(4)->fragments(), 0);
  // As many fragments as steps: one in each.
  for (std::int64_t step = 1; step <= 10; ++step) {
    std::int64_t due = 0;
    for (std::int64_t f = 0; f < 5; ++f) {
      due += diloco(5, {.fragments = 5, .warm_up = 0})->due(step, f, 5);
    }
    EXPECT_EQ(due, 1) << step;
  }
}

/// What torch.optim.SGD(nesterov=True) does with a gradient, in float64.
struct OuterSgd {
  double rate, momentum;
  double buffer = 0;
  double step(double value, double gradient) {
    buffer = momentum * buffer + gradient;
    return value - rate * (gradient + momentum * buffer);
  }
};

// The gradient of the outer optimizer is what all copies were before, less their mean.
// promise: averaging.h#diloco
TEST(AveragingPolicies, TheOuterStepOfDilocoIsNesterovsOfTheDifference) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> moves(-1, 1);
  for (const Diloco& numbers :
       {Diloco{.warm_up = 0}, Diloco{.rate = 0.4, .momentum = 0.5, .warm_up = 0}}) {
    const auto policy = diloco(8, numbers);
    std::vector<OuterSgd> outer(5, {numbers.rate, numbers.momentum});
    std::vector<double> expected(5, 1);
    std::vector<double> before = expected;
    std::vector<double> kept(5, 0);
    for (std::int64_t round = 1; round <= 50; ++round) {
      std::vector<double> values = before;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double move = moves(random);
        values[i] += move;
        expected[i] = outer[i].step(expected[i], -move);
      }
      policy->combine({.values = values,
                       .before = before,
                       .logical_workers = 4,
                       .step = 8 * round,
                       .states = {kept}});
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], expected[i], 1e-12) << "round " << round;
      }
      before = values;
    }
  }
}

// promise: averaging.h#diloco
TEST(AveragingPolicies, DilocoWithoutWarmUpIsBlockMomentumInNesterovsForm) {
  const std::vector<double> before = {1, -2, 0.3};
  std::vector<double> values[2];
  std::vector<double> kept[2];
  const AveragingPolicyPointer policies[2] = {
      diloco(4, {.rate = 0.7, .momentum = 0.9, .warm_up = 0}),
      block_momentum(4, 0, {.momentum = 0.9, .rate = 0.7, .nesterov = true})};
  for (std::size_t k = 0; k < 2; ++k) {
    values[k] = {0.1, 0.7, 5};
    kept[k] = {0.2, -0.6, 0};
    policies[k]->combine({.values = values[k], .before = before, .step = 4, .states = {kept[k]}});
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(kept[0], kept[1]);
}

// promise: averaging.h#warm_up
TEST(AveragingPolicies, TheWarmUpOfDilocoTakesTheMeanAndLeavesTheMomentum) {
  const auto policy = diloco(4, {.warm_up = 6});
  const std::vector<double> before = {1, 1};
  std::vector<double> kept = {0, 0};
  std::vector<double> values = {2, 3};
  policy->combine({.values = values, .before = before, .step = 6, .states = {kept}});
  EXPECT_THAT(values, ElementsAre(2, 3));
  EXPECT_THAT(kept, ElementsAre(0, 0));
  policy->combine({.values = values, .before = before, .step = 10, .states = {kept}});
  EXPECT_THAT(kept, ElementsAre(0.7 * 1, 0.7 * 2));
}

// promise: averaging.h#AveragingRound, averaging.h#local_sgd, averaging.h#validate
TEST(AveragingPolicies, NumbersThatMakeNoSenseAreRefused) {
  EXPECT_THAT(text_of([] { local_sgd(0); }), HasSubstr("the period must be at least 1"));
  EXPECT_THAT(text_of([] { local_sgd(2, -1); }), HasSubstr("-1 steps of warm-up"));
  EXPECT_THAT(text_of([] { block_momentum(0); }), HasSubstr("the period must be at least 1"));
  for (const double bad : {-0.5, 1.0, double{NAN}})
    EXPECT_THAT(text_of([&] { block_momentum(2, 0, {.momentum = bad}); }), HasSubstr("below 1"));
  for (const double bad : {0.0, -1.0, double{NAN}, double{INFINITY}})
    EXPECT_THAT(text_of([&] { block_momentum(2, 0, {.rate = bad}); }), HasSubstr("above 0"));
  EXPECT_THAT(text_of([] { diloco(0); }), HasSubstr("diloco:0: the period must be at least 1"));
  for (const double bad : {-1.0, -0.5, 1.0, double{NAN}})
    EXPECT_THAT(text_of([&] { diloco(2, {.momentum = bad}); }),
                AllOf(HasSubstr("outer momentum"), HasSubstr("at least 0 and below 1")));
  for (const double bad : {0.0, -1.0, double{NAN}, double{INFINITY}})
    EXPECT_THAT(text_of([&] { diloco(2, {.rate = bad}); }),
                AllOf(HasSubstr("outer rate"), HasSubstr("finite and above 0")));
  for (const std::int64_t bad : {-1, 0, 5})
    EXPECT_THAT(text_of([&] { diloco(4, {.fragments = bad}); }),
                HasSubstr("fragments: must be at least 1, and at most one for each step"));
  EXPECT_THAT(text_of([] { diloco(4, {.warm_up = -2}); }), HasSubstr("-2 steps of warm-up"));
  for (const std::int64_t bad : {-1, 4})
    EXPECT_THAT(text_of([&] { diloco(8, {.fragments = 2, .overlap = bad}); }),
                HasSubstr("must be at least 0, and below the period divided by the number of "
                          "fragments, 2"));
  EXPECT_NO_THROW(diloco(8, {.fragments = 2, .overlap = 3}));
  for (const double bad : {-0.5, 1.0, double{NAN}})
    EXPECT_THAT(text_of([&] { diloco(8, {.overlap = 3, .own = bad}); }),
                HasSubstr("of its own copy: must be at least 0 and below 1"));
  class Overlapping final : public AveragingPolicy {
   public:
    explicit Overlapping(const AveragingOverlap& overlap) : overlap_(overlap) {}
    std::string name() const override { return "odd"; }
    bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
    AveragingOverlap overlap() const override { return overlap_; }

   private:
    AveragingOverlap overlap_;
  };
  EXPECT_THAT(text_of([] { validate(Overlapping({.steps = -1})); }),
              HasSubstr("averaging odd: an overlap of -1 steps"));
  EXPECT_THAT(text_of([] { validate(Overlapping({.own = 1})); }),
              HasSubstr("averaging odd: a share of 1 of its own copy"));
  EXPECT_NO_THROW(validate(Overlapping({.steps = 3, .own = 0})));
}

// promise: averaging.h#averaging_policy_of, averaging.h#name, averaging.h#name_of
TEST(AveragingPolicies, NamesAreReadAndTellThemApart) {
  EXPECT_EQ(averaging_policy_of("every-step"), nullptr);
  EXPECT_EQ(averaging_policy_of("partial")->name(), "partial");
  EXPECT_EQ(averaging_policy_of("local-sgd:16")->name(), "local-sgd:16");
  EXPECT_EQ(averaging_policy_of("bmuf:16")->name(), "bmuf:16, momentum 1 − 1/L, rate 1");
  EXPECT_NE(local_sgd(16, 2)->name(), local_sgd(16)->name());
  EXPECT_NE(block_momentum(16, 0, {.nesterov = true})->name(), block_momentum(16)->name());
  const Diloco usual;
  EXPECT_EQ(averaging_policy_of("diloco:32")->name(), diloco(32)->name());
  EXPECT_EQ(diloco(32)->name(), fmt::format("diloco:32,{},{},fragments={},warm-up={}", usual.rate,
                                            usual.momentum, usual.fragments, 32))
      << "the warm-up is one period";
  const Diloco own{.rate = 0.4, .momentum = 0.8, .fragments = 3, .warm_up = 7};
  EXPECT_EQ(averaging_policy_of("diloco:32,0.4,0.8,fragments=3,warm-up=7")->name(),
            diloco(32, own)->name());
  EXPECT_EQ(averaging_policy_of("diloco:32,0.4,0.8,warm-up=7,fragments=3")->name(),
            diloco(32, own)->name());
  EXPECT_EQ(averaging_policy_of(diloco(32, own)->name())->name(), diloco(32, own)->name());
  EXPECT_EQ(averaging_policy_of("diloco:32,0.4")->name(), diloco(32, {.rate = 0.4})->name());
  auto in_8_bits = own;
  in_8_bits.int8 = true;
  EXPECT_FALSE(diloco(32, own)->sends_int8());
  EXPECT_FALSE(local_sgd(2)->sends_int8());
  EXPECT_TRUE(diloco(32, in_8_bits)->sends_int8());
  EXPECT_NE(diloco(32, in_8_bits)->name(), diloco(32, own)->name());
  for (const auto& text : {diloco(32, in_8_bits)->name(),
                           std::string("diloco:32,0.4,0.8,int8,warm-up=7,fragments=3")}) {
    EXPECT_EQ(averaging_policy_of(text)->name(), diloco(32, in_8_bits)->name());
    EXPECT_TRUE(averaging_policy_of(text)->sends_int8());
  }
  auto later = in_8_bits;
  later.overlap = 5;
  later.own = 0.25;
  for (const auto& text :
       {diloco(32, later)->name(),
        std::string("diloco:32,0.4,0.8,own=0.25,int8,warm-up=7,overlap=5,fragments=3")}) {
    EXPECT_EQ(averaging_policy_of(text)->name(), diloco(32, later)->name());
    EXPECT_EQ(averaging_policy_of(text)->overlap().steps, 5);
    EXPECT_EQ(averaging_policy_of(text)->overlap().after, 7);
    EXPECT_EQ(averaging_policy_of(text)->overlap().own, 0.25);
  }
  EXPECT_NE(diloco(32, later)->name(), diloco(32, in_8_bits)->name());
  EXPECT_EQ(local_sgd(2)->overlap().steps, 0);
  EXPECT_EQ(diloco(32)->overlap().steps, 0);
  EXPECT_EQ(averaging_policy_of("diloco:32,overlap=5")->name(), diloco(32, {.overlap = 5})->name());
  EXPECT_EQ(averaging_policy_of("diloco:32,int8")->name(), diloco(32, {.int8 = true})->name());
  EXPECT_EQ(averaging_policy_of("diloco:9,fragments=2")->name(),
            diloco(9, {.fragments = 2})->name());
  EXPECT_EQ(averaging_policy_of("diloco:9,warm-up=2")->name(), diloco(9, {.warm_up = 2})->name());
  for (const char* text : {"",
                           "local-sgd",
                           "local-sgd:",
                           "local-sgd:2x",
                           "bmuf:x",
                           "partial:2",
                           "bmuf:2,0.7",
                           "diloco",
                           "diloco:",
                           "diloco:x",
                           "diloco:8,",
                           "diloco:8,0.7,0.9,1",
                           "diloco:8,0.7x",
                           "diloco:8,fragments=2,0.7",
                           "diloco:8,fragments=2,fragments=2",
                           "diloco:8,fragments",
                           "diloco:8,warm-up=",
                           "diloco:8,pieces=2",
                           "diloco:fragments=2",
                           "diloco:int8",
                           "diloco:8,int8,int8",
                           "diloco:8,int8,0.7",
                           "diloco:8,int4",
                           "local-sgd:8,int8",
                           "diloco:8,overlap=2,0.7",
                           "diloco:8,overlap=2,overlap=2",
                           "diloco:8,overlap",
                           "diloco:8,own=0.1,own=0.1",
                           "diloco:8,own=x"})
    EXPECT_THAT(text_of([&] { averaging_policy_of(text); }),
                HasSubstr("there are every-step, partial, local-sgd:K, bmuf:K and diloco:K[,rate"))
        << text;
  EXPECT_EQ(name_of(StateAtAveraging::keep), "keep");
  EXPECT_EQ(name_of(StateAtAveraging::average), "average");
  EXPECT_EQ(name_of(StateAtAveraging::reset), "reset");
}

}  // namespace
}  // namespace tutti::test
