#include "torch/data_parallel/step_backwards.h"

#include "torch/training.h"

namespace tutti::test::step_backwards_cases {
namespace {

TEST(StepBackwards, OneAloneGivesTheLastGradientsUntilItEnds) {
  StepBackwards backwards;
  EXPECT_TRUE(backwards.is_last());
  EXPECT_TRUE(backwards.may_open(4));
  backwards.open(4);
  EXPECT_TRUE(backwards.is_current(4));
  EXPECT_FALSE(backwards.is_current(5)) << "a backward inside it";
  EXPECT_TRUE(backwards.is_current(4));
  backwards.end();
  EXPECT_TRUE(backwards.is_current(6));
  EXPECT_FALSE(backwards.is_current(4));
}

// The inner one has ended first, and its step with it; the outer one's gradients come too late.
TEST(StepBackwards, OneInsideWhichAnotherHasOpenedAStepOpensNone) {
  StepBackwards backwards;
  backwards.open(8);
  backwards.end();
  EXPECT_FALSE(backwards.may_open(7));
  EXPECT_TRUE(backwards.may_open(8));
  EXPECT_TRUE(backwards.may_open(9));
}

TEST(StepBackwards, OfALeafOnlyThatOfItsLossGivesTheLastGradients) {
  StepBackwards backwards;
  backwards.open_scope();
  EXPECT_TRUE(backwards.in_scope());
  EXPECT_FALSE(backwards.in_leaf());
  for (const int number : {3, 9}) {
    backwards.begin_leaf();
    EXPECT_TRUE(backwards.in_leaf());
    EXPECT_FALSE(backwards.is_last());
    backwards.begin_last();
    EXPECT_TRUE(backwards.is_last());
    EXPECT_TRUE(backwards.is_current(number)) << "the first one decides, not the last leaf's";
    EXPECT_FALSE(backwards.is_current(number + 1));
    backwards.end_last();
    EXPECT_FALSE(backwards.is_last());
    backwards.end_leaf();
    EXPECT_FALSE(backwards.in_leaf());
  }
  backwards.end_scope();
  EXPECT_FALSE(backwards.in_scope());
  EXPECT_TRUE(backwards.is_last());
}

TEST(StepBackwards, ScopesAreNumberedAndAnEndedOneHasNone) {
  StepBackwards backwards;
  EXPECT_EQ(backwards.scope(), 0u);
  backwards.open_scope();
  EXPECT_EQ(backwards.scope(), 1u);
  backwards.end_scope();
  EXPECT_EQ(backwards.scope(), 0u);
  backwards.open_scope();
  EXPECT_EQ(backwards.scope(), 2u);
}

TEST(StepBackwards, AFailedStepLeavesNoScopeAndNoLeafOpen) {
  StepBackwards backwards;
  backwards.open_scope();
  backwards.begin_leaf();
  backwards.begin_last();
  backwards.drop();
  EXPECT_EQ(backwards.scope(), 0u);
  EXPECT_FALSE(backwards.in_leaf());
  backwards.open_scope();
  EXPECT_FALSE(backwards.is_last());
  EXPECT_EQ(backwards.scope(), 2u);
}

}  // namespace
}  // namespace tutti::test::step_backwards_cases
