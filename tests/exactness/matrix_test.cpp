// The whole exactness matrix: every model with every optimizer and way of a step, on 1, 2, 3, 5 and
// 8 workers, straight and stopped after every step. Minutes: script/exactness runs it.

#include "torch/exact_cases.h"

namespace tutti::test::exact {
namespace {

using Axes = std::tuple<const char*, const char*, const char*>;

class ExactnessMatrix : public ::testing::TestWithParam<Axes> {
 protected:
  void SetUp() override {
    if (!go_together(one().model, one().optimizer, one().way)) {
      GTEST_SKIP() << "what one of them is refused with";
    }
  }
  static Case one() {
    const auto [model, optimizer, way] = GetParam();
    return {model, optimizer, way, 5};
  }
};

TEST_P(ExactnessMatrix, Straight) { expect_same_on_any_number(one(), {2, 3, 5, 8}); }

TEST_P(ExactnessMatrix, StoppedAfterAnyStep) {
  expect_same_after_a_stop(one(), 1, 1, 8);
  expect_same_after_a_stop(one(), 2, 5, 3);
  expect_same_after_a_stop(one(), 3, 2, 1);
}

std::string name_of_case(const ::testing::TestParamInfo<Axes>& test) {
  return std::apply(name_of, test.param);
}

INSTANTIATE_TEST_SUITE_P(All, ExactnessMatrix,
                         ::testing::Combine(::testing::ValuesIn(kModels),
                                            ::testing::ValuesIn(kOptimizers),
                                            ::testing::ValuesIn(kWays)),
                         name_of_case);

}  // namespace
}  // namespace tutti::test::exact
