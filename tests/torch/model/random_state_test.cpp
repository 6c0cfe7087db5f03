#include "torch/model/random_state.h"

#include "torch/training.h"

namespace tutti::test::random_state_cases {
namespace {

TEST(RandomStateGuard, WhatIsDrawnAndSeededMeanwhileDoesNotCount) {
  torch::manual_seed(7);
  torch::randn(3);
  const auto expected = [] {
    const RandomStateGuard guard;
    return torch::randn(5);
  }();
  {
    const RandomStateGuard guard;
    torch::manual_seed(99);
    torch::randn(11);
  }
  EXPECT_TRUE(torch::equal(torch::randn(5), expected));
}

TEST(RandomStateMark, HoldsThePlaceThatTheGeneratorStoodAtWhenItWasMade) {
  torch::manual_seed(7);
  const RandomStateMark first;
  torch::randn(3);
  const RandomStateMark second;
  EXPECT_EQ(first.position().seed, 7u);
  EXPECT_EQ(second.position().seed, 7u);
  EXPECT_NE(first.position().state, 0u);
  EXPECT_NE(first.position().state, second.position().state);
  torch::manual_seed(7);
  EXPECT_EQ(RandomStateMark().position().state, first.position().state);
}

TEST(RandomStateMark, KnowsNothingOfThePlaceOnceTheGeneratorWasSeededOtherwise) {
  torch::manual_seed(7);
  const RandomStateMark mark;
  torch::manual_seed(8);
  EXPECT_EQ(mark.position().seed, 8u);
  EXPECT_EQ(mark.position().state, 0u);
}

}  // namespace
}  // namespace tutti::test::random_state_cases
