// What a policy is asked, and what becomes of its answer.

#include "sync/averaging/policy_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

/// state += values − before; values = before + state / L, in step 7; else they stay.
class Summing final : public AveragingPolicy {
 public:
  explicit Summing(double spoil = 0) : spoil_(spoil) {}
  std::string name() const override { return "summing"; }
  bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
  int states() const override { return 1; }
  void combine(const AveragingRound& round) const override {
    if (spoil_ < 0) throw std::runtime_error("no use");
    if (round.step != 7) return;
    for (std::size_t i = 0; i < round.values.size(); ++i) {
      round.states[0][i] += round.values[i] - round.before[i];
      round.values[i] = round.before[i] +
                        round.states[0][i] / static_cast<double>(round.logical_workers) + spoil_;
    }
  }

 private:
  double spoil_;
};

template <class Real>
void expect_combined(DType type) {
  const Summing policy;
  PolicyCall call(policy, 4, 8);
  std::vector<Real> values = {5, 7, 9};
  std::vector<Real> before = {1, 1, 1};
  std::vector<Real> state = {0, 4, 8};
  const auto at = [](std::vector<Real>& v) { return reinterpret_cast<std::byte*>(v.data()); };
  call.ask(7, "p", {type, 3, at(values), at(before), {at(state)}});
  EXPECT_EQ(state, (std::vector<Real>{4, 10, 16}));
  EXPECT_EQ(values, (std::vector<Real>{2, 3.5, 5}));
  EXPECT_EQ(before, values) << "what all copies were before the next round";
}

TEST(PolicyCall, AsksInFloat64AndLeavesTheParametersType) {
  expect_combined<float>(DType::float32);
  expect_combined<double>(DType::float64);
}

TEST(PolicyCall, SaysWhosePolicyFailed) {
  const auto text_of = [](double spoil) -> std::string {
    const Summing policy(spoil);
    PolicyCall call(policy, 4, 8);
    std::vector<float> values = {1};
    std::vector<float> before = {1};
    std::vector<float> state = {0};
    const auto at = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
    try {
      call.ask(7, "p", {DType::float32, 1, at(values), at(before), {at(state)}});
    } catch (const Mismatch& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text_of(0), "");
  EXPECT_THAT(text_of(-1), HasSubstr("averaging summing, parameter \"p\": no use"));
  EXPECT_THAT(text_of(1e300), HasSubstr("averaging summing, parameter \"p\": what its copies"));
}

}  // namespace
}  // namespace tutti::test
