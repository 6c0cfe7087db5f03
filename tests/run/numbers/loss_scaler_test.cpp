#include "run/numbers/loss_scaler.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

constexpr LossScale kRule{.dynamic = true, .grow_after = 3, .minimum = 1, .maximum = 16};

// promise: loss_scale.h#LossScale
TEST(LossScaler, GrowsAfterARunOfGoodStepsUpToItsBound) {
  LossScaleState state{.factor = 4};
  const double factors[] = {4, 4, 8, 8, 8, 16, 16, 16, 16};
  for (const double factor : factors) {
    grow(kRule, state);
    EXPECT_EQ(state.factor, factor);
  }
}

// promise: loss_scale.h#LossScale
TEST(LossScaler, ABadStepShrinksItAndStartsTheRunAnew) {
  LossScaleState state{.factor = 4};
  grow(kRule, state);
  grow(kRule, state);
  EXPECT_TRUE(shrink(kRule, state));
  EXPECT_EQ(state.factor, 2);
  grow(kRule, state);
  EXPECT_EQ(state.factor, 2);
  EXPECT_TRUE(shrink(kRule, state));
  EXPECT_FALSE(shrink(kRule, state)) << "it is at its least";
  EXPECT_EQ(state.factor, 1);
}

/// As torch.amp.GradScaler, whose growth tracker is 0 after each step that is not finite.
// promise: loss_scale.h#LossScale
TEST(LossScaler, AtItsLeastABadStepStartsTheRunAnewToo) {
  constexpr LossScale kLow{.dynamic = true, .grow_after = 4, .minimum = 1, .maximum = 16};
  LossScaleState state{.factor = 1};
  for (int good = 0; good < 3; ++good) grow(kLow, state);
  EXPECT_FALSE(shrink(kLow, state));
  for (int good = 0; good < 3; ++good) {
    grow(kLow, state);
    EXPECT_EQ(state.factor, 1) << good;
  }
  grow(kLow, state);
  EXPECT_EQ(state.factor, 2);
}

TEST(LossScaler, AFixedOneStays) {
  LossScaleState state{.factor = 128};
  const LossScale fixed{.dynamic = false, .grow_after = 1, .maximum = 1e9};
  grow(fixed, state);
  EXPECT_FALSE(shrink(fixed, state));
  EXPECT_EQ(state.factor, 128);
}

}  // namespace
}  // namespace tutti
