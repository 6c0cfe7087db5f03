// Copies of per-replica parameters, and how they are averaged.

#include "sync/averaging/replica_averaging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "support/thread_ranks.h"
#include "sync/averaging/replica_copies.h"
#include "sync/gradient_oracle.h"

namespace tutti::test {
namespace {

constexpr std::size_t kLogical = 3;

/// All logical workers share the second one.
Plan replica_plan() {
  std::vector<TensorSpec> specs;
  const auto plain = plan_of({5, 7, 5});
  for (const auto& entry : plain.parameters()) specs.push_back(entry.spec);
  specs[0].is_per_replica = specs[2].is_per_replica = true;
  return {std::move(specs), {}};
}

std::span<float> floats(std::byte* at, std::size_t count) {
  return {reinterpret_cast<float*>(at), count};
}

struct Copies {
  explicit Copies(const Group& group)
      : plan(replica_plan()),
        first(group, plan, {1, 1, 1}, false, "model"),
        copies(group, plan, first, {1, 1, 1}, kLogical, "model") {}
  std::span<float> value(std::size_t logical, std::uint32_t p) {
    return floats(copies.of(logical).value(p), 5);
  }
  std::span<float> state(std::size_t logical, std::uint32_t p) {
    return floats(copies.of(logical).state(p, 0), 5);
  }
  Plan plan;
  SharedModel first;
  ReplicaCopies copies;
};

TEST(ReplicaCopies, AreTheFirstOnesAndThenTheirOwn) {
  run_thread_ranks(1, [](const Job& job) {
    Copies all((Group(job)));
    EXPECT_EQ(all.copies.parameters(), (std::vector<std::uint32_t>{0, 2}));
    EXPECT_EQ(all.copies.size(), kLogical);
    EXPECT_EQ(&all.copies.of(0), &all.first);
    EXPECT_EQ(states_of_replicas(all.plan, {1, 1, 1}), (std::vector<int>{1, kNotHere, 1}));
    all.value(0, 2)[4] = 3;
    all.state(0, 2)[1] = 4;
    all.copies.spread(2);
    for (std::size_t l = 0; l < kLogical; ++l) {
      EXPECT_EQ(all.value(l, 2)[4], 3);
      EXPECT_EQ(all.state(l, 2)[1], 4);
    }
    all.value(1, 2)[4] = 5;
    EXPECT_EQ(all.value(0, 2)[4], 3);
    EXPECT_EQ(all.value(2, 2)[4], 3);
  });
}

// The value of a 16-bit parameter lies beside its master copy.
TEST(ReplicaCopies, TakeOverValuesMasterCopiesAndState) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    TensorSpec spec{"p", {5}, {1}, 5, DType::bfloat16};
    spec.is_per_replica = true;
    const Plan plan({spec}, {});
    const SharedModel first(group, plan, {2}, false, "model");
    const ReplicaCopies copies(group, plan, first, {2}, kLogical, "model");
    const auto parts_of = [](const SharedModel& model) {
      return std::vector<std::span<std::byte>>{{model.value(0), 10},
                                               {model.master(0), 20},
                                               {model.state(0, 0), 20},
                                               {model.state(0, 1), 20}};
    };
    int next = 1;
    for (const auto& part : parts_of(first))
      std::ranges::fill(part, static_cast<std::byte>(next++));
    copies.spread(0);
    for (std::size_t l = 1; l < kLogical; ++l) {
      for (std::size_t k = 0; k < 4; ++k) {
        EXPECT_TRUE(std::ranges::equal(parts_of(copies.of(l))[k], parts_of(first)[k]))
            << "logical worker " << l << ", part " << k;
      }
    }
  });
}

TEST(ReplicaAveraging, OnlyWhatMovedBecomesOneAndOnlyWhenItIsDue) {
  for (const auto state :
       {StateAtAveraging::keep, StateAtAveraging::average, StateAtAveraging::reset}) {
    run_thread_ranks(1, [&](const Job& job) {
      const Group group(job);
      Copies all(group);
      StepMemory memory(group, "model");
      ReplicaAveraging averaging(memory, all.plan, all.copies,
                                 {.averaging = local_sgd(2),
                                  .state = state,
                                  .fusion = 100,
                                  .initial_states = {{0.5}, {0}, {0.5}},
                                  .name = "model"});
      std::vector<UpdateRules> rules(kLogical,
                                     UpdateRules(all.plan, {UpdateRule{}, {}, UpdateRule{}}));
      for (std::size_t l = 0; l < kLogical; ++l) {
        rules[l].updates() = {static_cast<std::int64_t>(l), 0, static_cast<std::int64_t>(l)};
        for (std::size_t i = 0; i < 5; ++i) {
          all.value(l, 0)[i] = static_cast<float>(3 * l + i);
          all.state(l, 0)[i] = static_cast<float>(6 * l);
          all.value(l, 2)[i] = 1;
        }
      }
      averaging.begin(1, {2, 0, 0});
      EXPECT_FALSE(averaging.rounds().is_averaged(0)) << "the first of two steps";
      EXPECT_FALSE(averaging.any_due());
      averaging.commit(rules);
      EXPECT_EQ(averaging.rounds().moved()[0], 1);
      averaging.begin(2, {0, 0, 0});
      EXPECT_TRUE(averaging.any_due());
      EXPECT_TRUE(averaging.rounds().is_averaged(0)) << "it moved in the step before";
      EXPECT_FALSE(averaging.rounds().is_averaged(2)) << "its copies are equal";
      averaging.average({0, 0, 5});
      averaging.commit(rules);
      EXPECT_EQ(averaging.rounds().moved()[0], 0);
      for (std::size_t l = 0; l < kLogical; ++l) {
        const bool kept = state == StateAtAveraging::keep;
        const auto mean_state = state == StateAtAveraging::average ? 6.0f : 0.5f;
        for (std::size_t i = 0; i < 5; ++i) {
          EXPECT_EQ(all.value(l, 0)[i], static_cast<float>(3 + i));
          EXPECT_EQ(all.state(l, 0)[i], kept ? static_cast<float>(6 * l) : mean_state);
        }
        const auto updates = kept                                 ? static_cast<std::int64_t>(l)
                             : state == StateAtAveraging::average ? 2
                                                                  : 0;
        EXPECT_EQ(rules[l].updates()[0], updates);
        EXPECT_EQ(rules[l].updates()[2], static_cast<std::int64_t>(l));
      }
      // Values, and with them the state where it is averaged: handed in and got back by each.
      const std::size_t tensors = state == StateAtAveraging::average ? 2 : 1;
      EXPECT_EQ(averaging.rounds().bytes(), tensors * 5 * sizeof(float));
      EXPECT_EQ(averaging.traffic().collectives, 1);
      EXPECT_EQ(averaging.traffic().all_steps[0].bytes, 2 * kLogical * averaging.rounds().bytes());
    });
  }
}

}  // namespace
}  // namespace tutti::test
