// Which parameters are averaged in a step, how a tile of copies becomes one, and what is counted,
// wherever the copies lie.

#include "sync/averaging/averaging_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sync/averaging/averaged_copies.h"
#include "sync/gradient_oracle.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kReplicas = 3;
/// Buckets of more than 9 elements: {p0, p2}, {p3, p4}; p1 is never averaged.
const std::vector<std::size_t> kOwnedCounts = {5, 7, 6, 9, 3};
const std::vector<std::uint32_t> kAveraged = {0, 2, 3, 4};
constexpr std::int64_t kFusion = 9;

std::vector<std::uint32_t> averaged_of(const AveragingRounds& rounds) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t p = 0; p < kOwnedCounts.size(); ++p) {
    if (rounds.is_averaged(p)) found.push_back(p);
  }
  return found;
}

TEST(AveragingRounds, WhatMovedIsAveragedWhenItsBucketIsDueAndThenHasNotMoved) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = partial_update();
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  EXPECT_THAT(rounds.buckets(), ElementsAre(ElementsAre(0, 2), ElementsAre(3, 4)));
  EXPECT_THAT(averaged_of(rounds), IsEmpty()) << "before the first step";

  rounds.begin(1);
  EXPECT_THAT(rounds.due_buckets(), ElementsAre(0));
  EXPECT_THAT(averaged_of(rounds), IsEmpty()) << "nothing moved";
  rounds.note_moved(2);
  rounds.note_moved(4);
  EXPECT_THAT(averaged_of(rounds), ElementsAre(2)) << "the other one's bucket is not due";
  rounds.commit();
  EXPECT_THAT(averaged_of(rounds), ElementsAre(2)) << "the last step, until the next begins";
  EXPECT_THAT(rounds.moved(), ElementsAre(0, 0, 0, 0, 1));

  rounds.begin(2);
  EXPECT_THAT(rounds.due_buckets(), ElementsAre(1));
  EXPECT_THAT(averaged_of(rounds), ElementsAre(4)) << "it moved in the step before";
  rounds.note_moved(0);
  rounds.commit();
  EXPECT_THAT(rounds.moved(), ElementsAre(1, 0, 0, 0, 0));

  rounds.begin(4);
  EXPECT_THAT(averaged_of(rounds), IsEmpty());
}

// promise: averaging.h#due, averaging.h#fragments
TEST(AveragingRounds, AFragmentIsDueAsAWholeAndNoBucketIsOfTwo) {
  const auto plan = plan_of({4, 3, 5, 2, 9, 1, 6});
  const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4, 5, 6};
  const auto policy = diloco(6, {.fragments = 3, .warm_up = 0});
  // 12, 12 and 6 elements; buckets of more than 4.
  AveragingRounds rounds(plan, *policy, all, 4, kReplicas);
  EXPECT_THAT(rounds.buckets(), ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(4),
                                            ElementsAre(3, 5), ElementsAre(6)));
  const auto due_in = [&](std::int64_t step) {
    rounds.begin(step);
    for (const auto p : all) rounds.note_moved(p);
    std::vector<std::uint32_t> due;
    for (const auto p : all) {
      if (rounds.is_averaged(p)) due.push_back(p);
    }
    return due;
  };
  for (const std::int64_t round : {0, 6}) {
    EXPECT_THAT(due_in(round + 2), ElementsAre(0, 1, 2));
    EXPECT_THAT(due_in(round + 4), ElementsAre(3, 4, 5));
    EXPECT_THAT(due_in(round + 6), ElementsAre(6));
    for (const auto between : {1, 3, 5}) EXPECT_THAT(due_in(round + between), IsEmpty());
  }
  try {
    AveragingRounds(plan, *diloco(8, {.fragments = 8, .warm_up = 0}), all, 4, kReplicas);
    FAIL() << "a fragment had no parameter";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("warm-up=0: 8 fragments of 7 parameters"));
  }
}

TEST(AveragingRounds, AStepThatIsNotCommittedLeavesNothing) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = local_sgd(2);
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  rounds.begin(1);
  rounds.note_moved(0);
  rounds.commit();
  rounds.begin(2);
  rounds.note_moved(3);
  rounds.count_averaged(3, 0);
  EXPECT_THAT(averaged_of(rounds), ElementsAre(0, 3));
  rounds.begin(4);
  EXPECT_THAT(averaged_of(rounds), ElementsAre(0)) << "p3 was noted in a dropped step";
  EXPECT_EQ(rounds.bytes(), 0u);
  rounds.commit();
  EXPECT_EQ(rounds.traffic().steps, 2);
  EXPECT_EQ(rounds.traffic().collectives, 0);
  EXPECT_THAT(rounds.moved(), ElementsAre(0, 0, 0, 0, 0));
}

/// One parameter's copies, and all calls in order.
class NotedCopies final : public AveragedCopies {
 public:
  NotedCopies(std::vector<float> mean, std::vector<float> before, std::vector<float> state)
      : mean_(std::move(mean)), before_(std::move(before)), state_(std::move(state)) {}
  std::byte* mean(const ElementRange& tile) override { return at("mean", mean_, tile); }
  std::byte* before(const ElementRange& tile) override { return at("before", before_, tile); }
  std::byte* state(const ElementRange& tile, int k) override {
    return at("state " + std::to_string(k), state_, tile);
  }
  std::byte* in_flight(const ElementRange& tile) override { return at("in flight", flying_, tile); }
  void mix(const ElementRange&, const std::byte* values, double own) override {
    calls.emplace_back("mix");
    const auto* const from = reinterpret_cast<const float*>(values);
    mixed = from[0];
    kept_of_own = own;
  }
  void store(const ElementRange& tile, const std::byte* values) override {
    calls.emplace_back("store");
    const auto* const from = reinterpret_cast<const float*>(values);
    stored.assign(from, from + (tile.end - tile.begin));
  }
  const std::vector<float>& kept_before() const { return before_; }
  const std::vector<float>& kept_state() const { return state_; }

  std::vector<std::string> calls;
  std::vector<float> stored;
  float mixed = 0;
  double kept_of_own = 0;

 private:
  std::byte* at(const std::string& call, std::vector<float>& values, const ElementRange& tile) {
    calls.push_back(call);
    return reinterpret_cast<std::byte*>(values.data() + tile.begin);
  }
  std::vector<float> mean_, before_, state_;
  std::vector<float> flying_ = std::vector<float>(5);
};

TEST(AveragingRounds, ATileIsWhatThePolicyMakesOfItsMean) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = block_momentum(1, 0, {.momentum = 0.5, .rate = 0.25});
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  NotedCopies copies({9, 9, 5, 7, 9}, {1, 1, 1, 3, 1}, {0, 0, 2, 4, 0});
  rounds.send({0, 2, 4}, copies);
  // Δ' = 0.5·Δ + 0.25·(mean − before): 1 + 1, 2 + 1; values = before + Δ'.
  EXPECT_THAT(copies.stored, ElementsAre(3, 6));
  EXPECT_THAT(copies.kept_before(), ElementsAre(1, 1, 3, 6, 1));
  EXPECT_THAT(copies.kept_state(), ElementsAre(0, 0, 2, 3, 0));
  EXPECT_THAT(copies.calls, ElementsAre("mean", "before", "state 0", "store"));
}

// promise: averaging.h#step
TEST(AveragingRounds, ThePolicyIsToldTheStep) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = diloco(1, {.rate = 0.5, .momentum = 0, .warm_up = 1});
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  for (const std::int64_t step : {1, 2}) {
    NotedCopies copies({5, 7, 9, 9, 9}, {1, 1, 1, 1, 1}, {0, 0, 0, 0, 0});
    rounds.begin(step);
    rounds.send({0, 0, 2}, copies);
    EXPECT_THAT(copies.stored, step == 1 ? ElementsAre(5, 7) : ElementsAre(3, 4));
  }
}

TEST(AveragingRounds, APolicyWithoutStatesAsksForTheMeanAlone) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = local_sgd(1);
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  NotedCopies copies({1, 2, 3, 4, 5}, {}, {});
  rounds.send({0, 1, 5}, copies);
  EXPECT_THAT(copies.stored, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(copies.calls, ElementsAre("mean", "store"));
}

TEST(AveragingRounds, WhatIsNotFiniteIsStoredNowhere) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = local_sgd(1);
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  NotedCopies copies({1, INFINITY, 3, 4, 5, 6}, {}, {});
  try {
    rounds.send({2, 0, 6}, copies);
    FAIL() << "infinity was averaged";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), HasSubstr("averaging local-sgd:1, parameter \"p2\""));
  }
  EXPECT_THAT(copies.calls, ElementsAre("mean"));
}

TEST(AveragingRounds, CountsWhatReplicasSendBesideWhatGradientsWouldHaveCost) {
  const auto plan = plan_of(kOwnedCounts);
  const auto policy = local_sgd(2);
  AveragingRounds rounds(plan, *policy, kAveraged, kFusion, kReplicas);
  rounds.begin(1);
  rounds.count_gradients(2, 1, 1);
  rounds.commit();
  EXPECT_EQ(rounds.traffic().collectives, 0);
  rounds.begin(2);
  rounds.count_gradients(2, 2, 1);
  rounds.count_gradients(4, 3, 5);
  rounds.count_averaged(0, 0);
  rounds.count_averaged(2, 2);
  EXPECT_EQ(rounds.bytes(), 4u * (5 + 3 * 6));
  rounds.commit();
  const auto& traffic = rounds.traffic();
  EXPECT_EQ(traffic.steps, 2);
  EXPECT_EQ(traffic.collectives, 1);
  ASSERT_EQ(traffic.all_steps.size(), 2u);
  const auto& first = traffic.all_steps[0];
  EXPECT_EQ(first.parameters, "p0 … p2 (2)");
  EXPECT_EQ(first.messages, 3);
  EXPECT_EQ(first.dense_messages, 3);
  EXPECT_EQ(first.values, 3 * (5 + 6)) << "elements of parameters, not of their states";
  EXPECT_EQ(first.bytes, 2u * 3 * 4 * (5 + 3 * 6)) << "handed in and got back by each";
  EXPECT_EQ(first.touched, 6 + 2 * 6);
  EXPECT_EQ(first.bytes_dense, 4u * 6 * ((1 + 3) + (2 + 3)));
  const auto& second = traffic.all_steps[1];
  EXPECT_EQ(second.messages, 0);
  EXPECT_EQ(second.bytes, 0u);
  EXPECT_EQ(second.touched, 3 * 3);
  EXPECT_EQ(second.bytes_dense, 4u * 3 * 5 * (3 + 3)) << "in each of five steps";
  EXPECT_EQ(traffic.last_step[0].touched, 2 * 6);
}

/// Two steps after a due one.
class Late final : public AveragingPolicy {
 public:
  std::string name() const override { return "late"; }
  bool due(std::int64_t step, std::int64_t, std::int64_t) const override { return step != 4; }
  AveragingOverlap overlap() const override { return {.steps = 2, .after = 1, .own = 0.25}; }
  void combine(const AveragingRound& round) const override {
    for (auto& value : round.values) value += static_cast<double>(round.step);
  }
};

std::vector<std::uint32_t> arrived_of(const AveragingRounds& rounds) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t p = 0; p < kOwnedCounts.size(); ++p) {
    if (rounds.arrives(p)) found.push_back(p);
  }
  return found;
}

// promise: averaging.h#overlap, averaging.h#step, averaging.h#steps
TEST(AveragingRounds, AMeanThatIsInFlightIsAppliedLaterAndNothingIsSentMeanwhile) {
  const auto plan = plan_of(kOwnedCounts);
  const Late policy;
  AveragingRounds rounds(plan, policy, kAveraged, kFusion, kReplicas);
  const auto at_once = local_sgd(1);
  EXPECT_THAT(AveragingRounds(plan, *at_once, kAveraged, kFusion, kReplicas).in_flight(),
              IsEmpty());
  const auto begin = [&](std::int64_t step, const std::vector<std::uint32_t>& moved) {
    rounds.begin(step);
    for (const auto p : moved) rounds.note_moved(p);
  };
  NotedCopies copies({5, 7, 9, 9, 9}, {1, 1, 1, 1, 1}, {0, 0, 0, 0, 0});
  begin(1, {0});
  EXPECT_TRUE(rounds.is_sent(0));
  rounds.send({0, 0, 2}, copies);
  EXPECT_THAT(copies.calls, ElementsAre("mean", "store")) << "up to step 1 at once";
  rounds.commit();
  EXPECT_THAT(rounds.in_flight(), ElementsAre(0, 0, 0, 0, 0));

  begin(2, {0});
  EXPECT_TRUE(rounds.is_sent(0));
  copies.calls.clear();
  rounds.send({0, 1, 2}, copies);
  EXPECT_THAT(copies.calls, ElementsAre("mean", "in flight"));
  rounds.commit();
  EXPECT_THAT(rounds.in_flight(), ElementsAre(2, 0, 0, 0, 0));
  EXPECT_EQ(rounds.moved()[0], 0);

  begin(3, {0, 3});
  EXPECT_FALSE(rounds.is_averaged(0)) << "its mean is in flight";
  EXPECT_TRUE(rounds.is_sent(3));
  EXPECT_THAT(arrived_of(rounds), IsEmpty());
  rounds.commit();
  EXPECT_EQ(rounds.moved()[0], 1) << "what was updated meanwhile is to be sent";
  EXPECT_THAT(rounds.in_flight(), ElementsAre(2, 0, 0, 3, 0));

  begin(4, {});
  EXPECT_THAT(arrived_of(rounds), ElementsAre(0));
  EXPECT_TRUE(rounds.is_averaged(0));
  EXPECT_FALSE(rounds.is_sent(0)) << "nothing is due";
  // That step is dropped: the first one that counts applies it.
  begin(5, {});
  EXPECT_THAT(arrived_of(rounds), ElementsAre(0, 3));
  copies.calls.clear();
  rounds.receive({0, 1, 2}, copies);
  EXPECT_THAT(copies.calls, ElementsAre("in flight", "mix"));
  EXPECT_EQ(copies.mixed, 7 + 1 + 2) << "the policy is told the steps that sent";
  EXPECT_EQ(copies.kept_of_own, 0.25);
  EXPECT_TRUE(rounds.is_sent(0)) << "it moved in step 3";
  EXPECT_FALSE(rounds.is_sent(3));
  rounds.commit();
  EXPECT_THAT(rounds.in_flight(), ElementsAre(5, 0, 0, 0, 0));
  EXPECT_THAT(rounds.moved(), ElementsAre(0, 0, 0, 1, 0)) << "copies that were mixed differ";

  rounds.settle(0);
  rounds.settle(3);
  EXPECT_THAT(rounds.in_flight(), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(rounds.moved(), ElementsAre(0, 0, 0, 0, 0));
}

TEST(AveragingRounds, DifferencesIn8BitsCountAsTheyAreSent) {
  const auto plan = plan_of({1000, 7});
  const std::vector<std::uint32_t> all = {0, 1};
  const auto policy = diloco(1, {.warm_up = 0, .int8 = true});
  AveragingRounds rounds(plan, *policy, all, 2000, kReplicas);
  rounds.begin(1);
  rounds.count_averaged(0, 0);
  EXPECT_EQ(rounds.bytes(), 1000u + 4 * 4);
  rounds.count_averaged(1, 2, 5);
  EXPECT_EQ(rounds.bytes(), 1016u + 7 + 4 + 2 * 7 * 4) << "states are not differences";
  rounds.commit();
  const auto& bucket = rounds.traffic().last_step[0];
  EXPECT_EQ(bucket.bytes, 3 * (2 * 1016u + 6 * 67u));
  EXPECT_EQ(bucket.values, 3 * 1007);
}

// promise: averaging.h#before, averaging.h#sends_int8
TEST(AveragingRounds, DifferencesIn8BitsHaveABeforeAndTakeNoFloat64) {
  class Sender final : public AveragingPolicy {
   public:
    std::string name() const override { return "sender"; }
    bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
    bool sends_int8() const override { return true; }
    void combine(const AveragingRound& round) const override {
      for (std::size_t i = 0; i < round.values.size(); ++i) round.values[i] = -round.before[i];
    }
  };
  const Sender policy;
  EXPECT_TRUE(has_before(policy));
  EXPECT_FALSE(has_before(*local_sgd(1)));
  EXPECT_TRUE(has_before(*block_momentum(1)));
  const auto plan = plan_of(kOwnedCounts);
  AveragingRounds rounds(plan, policy, kAveraged, kFusion, kReplicas);
  NotedCopies copies({9, 9, 5, 7, 9}, {1, 2, 1, 3, 1}, {0, 0, 0, 0, 0});
  rounds.send({0, 0, 2}, copies);
  EXPECT_THAT(copies.stored, ElementsAre(-1, -2));

  const Plan wide({{"narrow", {2}, {1}, 2, DType::bfloat16}, {"wide", {3}, {1}, 3, DType::float64}},
                  {});
  EXPECT_NO_THROW(AveragingRounds(wide, policy, std::vector<std::uint32_t>{0}, kFusion, kReplicas));
  try {
    AveragingRounds(wide, policy, std::vector<std::uint32_t>{0, 1}, kFusion, kReplicas);
    FAIL() << "float64 was taken";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("averaging sender: parameter \"wide\" is float64; 8-bit differences are "
                          "of float32, float16 and bfloat16"));
  }
}

}  // namespace
}  // namespace tutti::test
