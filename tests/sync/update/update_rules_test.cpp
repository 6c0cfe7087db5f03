// What a rule is told of each parameter's next update.

#include "sync/update/update_rules.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti::test {
namespace {

Plan a_plan() {
  std::vector<TensorSpec> specs = {{"a", {4, 1}, {1, 1}, 4, DType::float32},
                                   {"b", {4, 1}, {1, 1}, 4, DType::float32},
                                   {"rows", {4, 1}, {1, 1}, 4, DType::float32}};
  specs[2].row_sparse = true;
  return {specs, {}};
}

TEST(UpdateRules, EachParameterCountsItsOwnUpdates) {
  const auto plan = a_plan();
  std::vector<UpdateMoment> told;
  const auto rule = [&](std::size_t states) {
    UpdateRule rule;
    rule.states.resize(states);
    rule.numbers = [&told](const UpdateMoment& moment) {
      told.push_back(moment);
      return SgdNumbers{};
    };
    return rule;
  };
  UpdateRules rules(plan, {rule(2), rule(1), rule(0)});
  for (std::int64_t step = 1; step <= 3; ++step) {
    told.clear();
    EXPECT_EQ(rules.next(0, 0.5).states, 2u);
    EXPECT_EQ(rules.next(1, 0.5).states, 1u);
    EXPECT_EQ(rules.next(2, 0.25).states, 0u);
    ASSERT_EQ(told.size(), 3u);
    EXPECT_EQ(told[0].step, step);
    EXPECT_EQ(told[1].step, step == 3 ? 2 : 1) << "it is touched in the second step alone";
    EXPECT_EQ(told[2].step, 1);
    EXPECT_EQ(told[0].rate_factor, 0.5);
    EXPECT_EQ(told[2].rate_factor, 0.25);
    EXPECT_FALSE(told[0].row_sparse);
    EXPECT_TRUE(told[2].row_sparse);
    rules.updates()[0] += 1;
    if (step == 2) rules.updates()[1] += 1;
  }
  EXPECT_EQ(rules.updates(), (std::vector<std::int64_t>{3, 1, 0}));
}

TEST(UpdateRules, AParameterWithoutOneIsUpdatedBySomethingElse) {
  const auto plan = a_plan();
  const UpdateRules rules(plan, {UpdateRule{}, std::nullopt, UpdateRule{}});
  EXPECT_TRUE(rules.has(0));
  EXPECT_FALSE(rules.has(1));
}

}  // namespace
}  // namespace tutti::test
