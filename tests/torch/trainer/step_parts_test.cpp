// What a dropped step means for those to come: DropsStepPart.

#include "torch/trainer/step_parts.h"

#include "torch/training.h"

namespace tutti::test::step_parts_cases {
namespace {

constexpr LossScale kDynamic{
    .dynamic = true, .growth = 2, .backoff = 0.5, .grow_after = 2, .minimum = 4, .maximum = 64};

struct Drops {
  explicit Drops(const LossScale& rule, double factor, std::int64_t most)
      : rule_(rule), scale{factor, 0}, part(rule_, scale, in_a_row, most, false) {}

  StepFacts applied(std::vector<std::int64_t> dropped_locally = {}) {
    StepFacts step{.number = ++number, .dropped_locally = std::move(dropped_locally)};
    part.end(step);
    return step;
  }
  StepFacts refused(const std::string& why, bool finite) {
    StepFacts step{.number = ++number};
    step.verdict.refusal = why;
    step.verdict.finite = finite;
    part.end(step);
    return step;
  }

 private:
  LossScale rule_;

 public:
  std::int64_t number = 0;
  LossScaleState scale;
  std::int64_t in_a_row = 0;
  DropsStepPart part;
};

TEST(DropsStepPart, AnAppliedStepLetsTheLossScaleGrowAndEndsTheCount) {
  Drops drops(kDynamic, 8, 5);
  drops.refused("weights", true);
  EXPECT_EQ(drops.in_a_row, 1);
  drops.applied();
  EXPECT_EQ(drops.in_a_row, 0);
  EXPECT_EQ(drops.scale.factor, 8);
  EXPECT_FALSE(drops.applied().shrank);
  EXPECT_EQ(drops.scale.factor, 16);
}

TEST(DropsStepPart, AStepThatShrinksTheLossScaleIsNotCounted) {
  Drops drops(kDynamic, 16, 2);
  for (const double factor : {8.0, 4.0}) {
    const auto step = drops.refused("overflow", false);
    EXPECT_TRUE(step.shrank);
    EXPECT_EQ(step.diverged, "");
    EXPECT_EQ(drops.scale.factor, factor);
    EXPECT_EQ(drops.in_a_row, 0);
  }
  EXPECT_FALSE(drops.refused("overflow", false).shrank) << "the factor is the least one";
  EXPECT_EQ(drops.in_a_row, 1);
  EXPECT_EQ(drops.refused("overflow", false).diverged,
            "2 steps in succession were dropped, the last one (step 4) because overflow");
}

TEST(DropsStepPart, ARefusalOfFiniteGradientsLeavesTheLossScaleAlone) {
  Drops drops(kDynamic, 16, 2);
  EXPECT_FALSE(drops.refused("weights", true).shrank);
  EXPECT_EQ(drops.scale.factor, 16);
  EXPECT_NE(drops.refused("weights", true).diverged, "");
}

TEST(DropsStepPart, PartsOfLogicalWorkersThatAreDroppedShrinkItToo) {
  Drops drops(kDynamic, 16, 1);
  const auto step = drops.applied({1, 3});
  EXPECT_TRUE(step.shrank);
  EXPECT_EQ(step.diverged, "") << "they are counted by logical worker";
  EXPECT_EQ(drops.scale.factor, 8);
  EXPECT_EQ(drops.in_a_row, 0);
}

}  // namespace
}  // namespace tutti::test::step_parts_cases
