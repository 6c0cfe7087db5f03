#include "kernels/update.h"

#include <gmock/gmock.h>

#include "base/check.h"
#include "every_target.h"
#include "update_model.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class Update : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(Update);

template <class T>
void is_the_model() {
  const auto rules = model::all_rules();
  for (std::size_t r = 0; r < rules.size(); ++r) {
    for (const std::size_t size : {0, 1, 7, 63, 64, 65, 1025}) {
      for (const std::size_t offset : {0, 1, 3, 15}) {
        SCOPED_TRACE(testing::Message() << "rule " << r << ", " << size << " at " << offset);
        State<T> state(size, offset, r + size);
        UpdateTarget target = state.target();
        if (offset > 0) target.gradient_scale = 0.37;
        if (offset > 1) target.clip_value = 0.5;
        update(rules[r].prepared(), target);
        state.expect(model::updated(rules[r], target, state.values));
      }
    }
  }
}

// promise: optimizer.h#Lion, optimizer.h#Optimizer, optimizer.h#amsgrad
TEST_P(Update, Float32IsTheModel) { is_the_model<float>(); }
TEST_P(Update, Float64IsTheModel) { is_the_model<double>(); }

// An edge of a slice must not show.
template <class T>
void cut_anywhere_is_the_whole() {
  for (const auto& by : model::all_rules()) {
    const auto rule = by.prepared();
    State<T> whole(197, 0, 5);
    State<T> cut(197, 1, 5);
    update(rule, whole.target());
    for (std::size_t begin = 0, length = 1; begin < 197; begin += length, ++length) {
      UpdateTarget target = cut.target(begin);
      target.count = std::min<std::int64_t>(target.count, static_cast<std::int64_t>(length));
      update(rule, target);
    }
    cut.expect_equal(whole);
  }
}

TEST_P(Update, CutAnywhereFloat32) { cut_anywhere_is_the_whole<float>(); }
TEST_P(Update, CutAnywhereFloat64) { cut_anywhere_is_the_whole<double>(); }

// Without this the tests above could not tell a contracted update from ours.
// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(Update, ContractionWouldHaveOtherBits) {
  State<float> state(4096, 0, 1);
  update(define(Sgd{.lr = 0.1}).at({}), state.target());
  int differing = 0;
  for (std::size_t i = 0; i < 4096; ++i) {
    differing += std::fma(-0.1F, state.values[0][i], state.values[1][i]) != state.parameter.at(i);
  }
  EXPECT_GT(differing, 0);
}

TEST_P(Update, ClippingKeepsNaNAndBoundsInfinity) {
  State<float> state(67, 0, 1);
  state.values[0].assign(67, 0.25F);
  const std::vector<float> odd = {NAN, -NAN, INFINITY, -INFINITY, 3, -3, 2, -2, -0.0F};
  // In the body of a run and in its tail.
  for (const std::size_t at : {std::size_t{3}, 67 - odd.size()}) {
    std::ranges::copy(odd, state.values[0].begin() + static_cast<std::ptrdiff_t>(at));
  }
  state.values[1].assign(67, 0);
  State<float> clipped(state.values, 0);
  UpdateTarget target = clipped.target();
  target.clip_value = 2;
  update(define(Sgd{.lr = 1}).at({}), target);
  for (const std::size_t at : {std::size_t{3}, 67 - odd.size()}) {
    EXPECT_TRUE(std::isnan(clipped.parameter.at(at)));
    EXPECT_TRUE(std::isnan(clipped.parameter.at(at + 1)));
    const float expected[] = {-2, 2, -2, 2, -2, 2, 0};
    for (std::size_t k = 0; k < 7; ++k) {
      EXPECT_EQ(clipped.parameter.at(at + 2 + k), expected[k]) << odd[k + 2];
    }
  }
  EXPECT_EQ(clipped.parameter.at(0), -0.25F);
}

// promise: clip.h#value, optimizer.h#Decay
TEST_P(Update, ClipsAfterTheScaleAndBeforeTheDecay) {
  State<float> state({{{8}, {4}, {0}, {0}, {0}}}, 0);
  UpdateTarget target = state.target();
  target.gradient_scale = 0.5;
  target.clip_value = 3;
  update(define(Sgd{.lr = 1, .weight_decay = 0.25}).at({}), target);
  EXPECT_EQ(state.parameter.at(0), 4 - (3 + 1));
}

TEST_P(Update, WhatARuleDoesNotUseIsNotTouched) {
  State<float> state(65, 0, 3);
  UpdateTarget target = state.target();
  target.states = {};
  update(define(Sgd{.lr = 0.1}).at({}), target);
  state.values[2].assign(65, NAN);
  State<float> fresh(state.values, 0);
  UpdateTarget starting = fresh.target();
  starting.states[1] = starting.states[2] = nullptr;
  update(define(Sgd{.lr = 0.1, .momentum = 0.9}).at({.step = 1}), starting);
  EXPECT_EQ(fresh.states[0].bytes(), fresh.gradient.bytes()) << "the first momentum was read";
}

TEST(UpdateChecks, RefuseImpossibleCombinations) {
  State<float> state(4, 0, 1);
  const auto refused = [&](const PreparedUpdate& rule, auto change, const char* text) {
    UpdateTarget target = state.target();
    change(target);
    EXPECT_THAT([&] { update(rule, target); }, ThrowsMessage<InternalError>(HasSubstr(text)));
  };
  const auto plain = define(Sgd{.lr = 1}).at({});
  const auto moving = define(Sgd{.lr = 1, .momentum = 0.9}).at({});
  const auto adam = define(Adam{.lr = 1}).at({});
  refused(
      plain, [](UpdateTarget& t) { t.dtype = DType::float16; }, "an update of float16");
  refused(
      plain, [](UpdateTarget& t) { t.count = -1; }, "an update of -1 elements");
  refused(
      plain, [](UpdateTarget& t) { t.clip_value = -1; }, "a gradient within ±-1");
  refused(
      plain, [](UpdateTarget& t) { t.clip_value = NAN; }, "a gradient within ±nan");
  refused(
      plain, [](UpdateTarget& t) { t.gradient = nullptr; }, "without a gradient");
  refused(
      plain, [](UpdateTarget& t) { t.parameter = nullptr; }, "without a parameter");
  refused(
      moving, [](UpdateTarget& t) { t.states[0] = nullptr; }, "without state 0 of 1");
  refused(
      adam, [](UpdateTarget& t) { t.states[0] = nullptr; }, "without state 0 of 2");
  refused(
      adam, [](UpdateTarget& t) { t.states[1] = nullptr; }, "without state 1 of 2");
  EXPECT_THAT([] { define(Adam{}).at({.step = 0}); },
              ThrowsMessage<InternalError>(HasSubstr("update 0 of a parameter")));
  EXPECT_EQ(state.parameter.bytes(), Placed<float>(state.values[1], 0).bytes());
}

}  // namespace
}  // namespace tutti
