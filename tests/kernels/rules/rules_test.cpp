// What rules tell the layers above: names of states as torch saves them, and what these begin with.

#include "kernels/rules/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

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
  EXPECT_EQ(states_of(AdamW{}), (States{{"exp_avg", 0}, {"exp_avg_sq", 0}}));
  EXPECT_EQ(states_of(Adagrad{.initial_sum = 0.5}), (States{{"sum", 0.5}}));
}

TEST(Rules, AnOptimizerOfTorchHasNoKernel) { EXPECT_FALSE(update_rule_of(TorchOptim{})); }

TEST(Rules, AreListedByTheNamesOfTheirStructs) {
  EXPECT_EQ(names_of_rules(), "Sgd, Adam, AdamW or Adagrad");
}

TEST(Rules, RefuseAnUpdateThatIsNotCounted) {
  EXPECT_THAT([] { define(Sgd{}).at({.step = 0}); },
              ThrowsMessage<InternalError>(HasSubstr("update 0 of a parameter")));
  auto greedy = define(Sgd{});
  greedy.states.resize(kMaxStates + 1);
  EXPECT_THAT([&] { greedy.at({}); },
              ThrowsMessage<InternalError>(HasSubstr("Sgd with 5 tensors of state")));
}

}  // namespace
}  // namespace tutti::test
