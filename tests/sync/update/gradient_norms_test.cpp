// Norms and clipping against sums in the test.

#include "sync/update/gradient_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sync/gradient_oracle.h"

namespace tutti::test {
namespace {

const Plan& plan() {
  static const auto plan = plan_of({10, 10, 10});
  return plan;
}

/// Of parameters 0 and 2; 1 is not touched.
GradientNorms norms(const Clip& clip, std::vector<double> first, std::vector<double> last) {
  const std::vector<std::uint32_t> touched = {0, 2};
  return norms_of(plan(), clip, touched, [&](std::uint32_t p) -> std::span<const double> {
    EXPECT_NE(p, 1u);
    return p == 0 ? first : last;
  });
}

TEST(GradientNorms, ClipAsTorchDoesByAllOrByEach) {
  // ‖a‖ = 3, ‖b‖ = 4, together 5.
  const auto all = norms({.norm = 1}, {4, 5}, {16});
  EXPECT_EQ(all.refusal, "");
  EXPECT_DOUBLE_EQ(all.squares, 25);
  EXPECT_DOUBLE_EQ(all.scales[0], 1 / (5 + 1e-6));
  EXPECT_DOUBLE_EQ(all.scales[2], 1 / (5 + 1e-6));
  EXPECT_DOUBLE_EQ(norms({.norm = 6}, {4, 5}, {16}).scales[0], 1) << "a bound that is not reached";
  const auto each = norms({.parameter_norm = 3.5}, {4, 5}, {16});
  EXPECT_DOUBLE_EQ(each.scales[0], 1);
  EXPECT_DOUBLE_EQ(each.scales[2], 3.5 / (4 + 1e-6));
  const auto both = norms({.norm = 1, .parameter_norm = 3.5}, {4, 5}, {16});
  EXPECT_DOUBLE_EQ(both.scales[2], 1 / (5 + 1e-6) * (3.5 / (4 + 1e-6)));
  EXPECT_TRUE(norms({.value = 1}, {4, 5}, {16}).scales.empty());
  EXPECT_FALSE(needs_norms({.value = 1}));
  EXPECT_TRUE(needs_norms({.parameter_norm = 1}));
}

TEST(GradientNorms, WhatIsNotFiniteIsRefusedByItsName) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(norms({}, {4, infinity}, {16}).refusal,
            "the sum of the gradients of \"p0\" is not finite");
  EXPECT_EQ(norms({}, {4}, {std::nan("")}).refusal,
            "the sum of the gradients of \"p2\" is not finite");
  EXPECT_EQ(norms({}, {1e308}, {1e308}).refusal, "the norm of the gradient is not finite");
}

}  // namespace
}  // namespace tutti::test
