// What rules tell the layers above: names of states as torch saves them, and what these begin with.

#include "kernels/rules/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/update_model.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using States = std::vector<std::pair<std::string, double>>;

States states_of(const Optimizer::Rule& rule) {
  States states;
  const auto kernel = update_rule_of(rule);
  for (const auto& state : kernel->states) states.emplace_back(state.name, state.initial);
  return states;
}

TEST(Rules, NameTheirStatesAsTorchSavesThem) {
  EXPECT_THAT(states_of(Sgd{}), IsEmpty());
  EXPECT_EQ(states_of(Sgd{.momentum = 0.9}), (States{{"momentum_buffer", 0}}));
  EXPECT_EQ(states_of(Adam{}), (States{{"exp_avg", 0}, {"exp_avg_sq", 0}}));
  EXPECT_EQ(states_of(Adam{.amsgrad = true}),
            (States{{"exp_avg", 0}, {"exp_avg_sq", 0}, {"max_exp_avg_sq", 0}}));
  EXPECT_EQ(states_of(AdamW{.amsgrad = true}),
            (States{{"exp_avg", 0}, {"exp_avg_sq", 0}, {"max_exp_avg_sq", 0}}));
  EXPECT_EQ(states_of(AdamW{}), (States{{"exp_avg", 0}, {"exp_avg_sq", 0}}));
  EXPECT_EQ(states_of(Adagrad{.initial_sum = 0.5}), (States{{"sum", 0.5}}));
  EXPECT_EQ(states_of(RmsProp{}), (States{{"square_avg", 0}}));
  EXPECT_EQ(states_of(RmsProp{.centered = true}), (States{{"square_avg", 0}, {"grad_avg", 0}}));
  EXPECT_EQ(states_of(RmsProp{.momentum = 0.9, .centered = true}),
            (States{{"square_avg", 0}, {"momentum_buffer", 0}, {"grad_avg", 0}}));
  EXPECT_EQ(states_of(Lion{}), (States{{"exp_avg", 0}}));
}

TEST(Rules, AnOptimizerOfTorchHasNoKernel) { EXPECT_FALSE(update_rule_of(TorchOptim{})); }

TEST(Rules, AreListedByTheNamesOfTheirStructs) {
  EXPECT_EQ(names_of_rules(), "Sgd, Adam, AdamW, Adagrad, RmsProp or Lion");
}

TEST(Rules, RefuseAnUpdateThatIsNotCounted) {
  EXPECT_THAT([] { define(Sgd{}).at({.step = 0}); },
              ThrowsMessage<InternalError>(HasSubstr("update 0 of a parameter")));
  auto greedy = define(Sgd{});
  greedy.states.resize(kMaxStates + 1);
  EXPECT_THAT([&] { greedy.at({}); },
              ThrowsMessage<InternalError>(HasSubstr("Sgd with 5 tensors of state")));
}

/// What a rule makes of parameters in 20 steps, beside what `next` makes of each element.
template <class Next>
void expect_equal_over_twenty_steps(const Optimizer::Rule& rule, const Next& next) {
  constexpr std::size_t kCount = 65;
  const auto kernel = update_rule_of(rule);
  auto values = model::random_values<double>(kCount, 100);
  auto expected = values;
  std::array<std::vector<double>, kModelStates> states;
  UpdateTarget target{.dtype = DType::float64, .parameter = values.data(), .count = kCount};
  for (std::size_t s = 0; s < kernel->states.size(); ++s) {
    states[s].assign(kCount, kernel->states[s].initial);
    target.states[s] = states[s].data();
  }
  for (std::int64_t step = 1; step <= 20; ++step) {
    const auto gradient = model::random_values<double>(kCount, static_cast<std::uint64_t>(step));
    target.gradient = gradient.data();
    update(kernel->at({.step = step}), target);
    for (std::size_t k = 0; k < kCount; ++k) {
      next(step, k, gradient[k], expected[k]);
      ASSERT_NEAR(values[k], expected[k], 1e-12) << "step " << step << ", element " << k;
    }
  }
}

// θ ← θ − η·(sign(β1·m + (1 − β1)·g) + λ·θ), then m ← β2·m + (1 − β2)·g, as the paper has it.
// promise: optimizer.h#Lion
TEST(Rules, LionIsAlgorithm2OfItsPaper) {
  std::vector<double> m(65);
  expect_equal_over_twenty_steps(Lion{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5},
                                 [&](std::int64_t, std::size_t k, double g, double& value) {
                                   const double c = 0.8 * m[k] + 0.2 * g;
                                   value -= 0.01 * ((c > 0) - (c < 0) + 0.5 * value);
                                   m[k] = 0.95 * m[k] + 0.05 * g;
                                 });
}

TEST(Rules, LionLeavesAParameterWhereNothingMovesItAndPassesNaNOn) {
  std::array<float, 3> values = {1, 2, 3};
  std::array<float, 3> mean = {0, 0, 0.5F};
  const std::array<float, 3> gradient = {0, NAN, -1};
  UpdateTarget target{.gradient = gradient.data(), .parameter = values.data(), .count = 3};
  target.states = {mean.data()};
  update(define(Lion{.lr = 0.25, .beta1 = 0.5, .beta2 = 0.5}).at({.step = 1}), target);
  EXPECT_EQ(values[0], 1);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 3.25F) << "against the sign of 0.25 - 0.5";
}

TEST(Rules, AmsgradsMaximumOfNaNIsNaN) {
  std::array<float, 2> values = {1, 2};
  std::array<float, 2> mean = {};
  std::array<float, 2> square = {};
  std::array<float, 2> most = {0.5F, 0.5F};
  const std::array<float, 2> gradient = {NAN, 0.25F};
  UpdateTarget target{.gradient = gradient.data(), .parameter = values.data(), .count = 2};
  target.states = {mean.data(), square.data(), most.data()};
  update(define(Adam{.amsgrad = true}).at({.step = 1}), target);
  EXPECT_TRUE(std::isnan(most[0]));
  EXPECT_EQ(most[1], 0.5F);
}

// Of equal gradients the variance is 0, and rounding would make it negative: torch's update is NaN
// then.
// promise: optimizer.h#centered
TEST(Rules, ACenteredRmsPropSurvivesEqualGradients) {
  float value = 1;
  float square = 0;
  float mean = 0;
  const float gradient = 0.7F;
  UpdateTarget target{.gradient = &gradient, .parameter = &value, .count = 1};
  target.states = {&square, &mean};
  const auto rule = define(RmsProp{.lr = 1e-12, .alpha = 0.75, .centered = true});
  bool was_negative = false;
  for (std::int64_t step = 1; step <= 200; ++step) {
    update(rule.at({.step = step}), target);
    ASSERT_TRUE(std::isfinite(value)) << "step " << step;
    was_negative = was_negative || square - mean * mean < 0;
  }
  EXPECT_TRUE(was_negative);
}

}  // namespace
}  // namespace tutti::test
