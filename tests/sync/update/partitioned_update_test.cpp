// The split update with ranks as threads: the bytes of one worker that folds all leaves along the
// tree and updates whole parameters.

#include "sync/update/partitioned_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "kernels/rules/registry.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/plan/assignment.h"
#include "sync/step/dense_gradients.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

/// Around tiles and vectors, and tiles that threads share.
const std::vector<std::size_t> kUpdatedCounts = {1,    63,     65, 4095, 4096,
                                                 4097, 20'000, 0,  17,   140'000};
constexpr std::int64_t kUpdateShards = 5;
constexpr std::int64_t kSteps = 3;
/// In eight: so many that some parameters have no gradient in a step.
constexpr unsigned kAbsent = 6;

double weight_of(std::int64_t shard) { return static_cast<double>(1 + shard % 3); }

struct Case {
  UpdateRule rule;
  Clip clip;
  bool by_threads = false;  ///< several of the host's update what a worker owns
  bool leaves = false;      ///< values leave while others are updated
};

/// From the last tile on, half of them by another thread.
void from_behind(std::int64_t tiles, const std::function<void(std::int64_t)>& fold_tile) {
  const auto half = tiles / 2;
  std::jthread other([&] {
    for (auto tile = half; tile-- > 0;) fold_tile(tile);
  });
  for (auto tile = tiles; tile-- > half;) fold_tile(tile);
}

/// All of one worker: values of the parameters after the steps.
std::vector<Values> alone(const Case& test) {
  std::vector<Values> values(kUpdatedCounts.size());
  std::vector<Values> first;
  std::vector<Values> second;
  std::vector<std::int64_t> updates(kUpdatedCounts.size());
  for (std::size_t p = 0; p < kUpdatedCounts.size(); ++p) {
    values[p] = random_values(p + 77, kUpdatedCounts[p]);
    first.emplace_back(kUpdatedCounts[p]);
    second.emplace_back(kUpdatedCounts[p]);
  }
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    std::vector<Leaf> leaves;
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t s = 0; s < kUpdateShards; ++s) {
      leaves.push_back(random_leaf(kUpdatedCounts, step, s, kAbsent));
      weights.push_back(weight_of(s));
      sum += weights.back();
    }
    std::vector<std::optional<Values>> gradients;
    double squares = 0;
    for (std::size_t p = 0; p < kUpdatedCounts.size(); ++p) {
      gradients.push_back(reduced(leaves, weights, p, sum));
      if (!gradients[p]) continue;
      squares += squares_of(*gradients[p]);
    }
    for (std::size_t p = 0; p < kUpdatedCounts.size(); ++p) {
      if (!gradients[p]) continue;
      ++updates[p];
      const double scale =
          test.clip.norm > 0 ? std::min(1.0, test.clip.norm / (std::sqrt(squares) + 1e-6)) : 1;
      update(test.rule.at({.step = updates[p]}),
             {.dtype = DType::float32,
              .gradient = gradients[p]->data(),
              .parameter = values[p].data(),
              .states = {first[p].data(), second[p].data()},
              .count = static_cast<std::int64_t>(kUpdatedCounts[p]),
              .gradient_scale = scale,
              .clip_value = test.clip.value});
    }
  }
  return values;
}

void expect_as_alone(int workers, const Case& test) {
  const auto expected = alone(test);
  run_thread_ranks(workers, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of(kUpdatedCounts),
                          {.name = "model",
                           .fusion = 5000,
                           .first_fusion = 4096,
                           .sync_buffers = false,
                           .for_tiles = test.by_threads ? ForTiles(from_behind) : ForTiles(),
                           .reports_magnitude = true});
    ShardBoard board(exchange.memory());
    SharedModel model(
        group, exchange.plan(),
        std::vector<int>(kUpdatedCounts.size(), static_cast<int>(test.rule.states.size())), false,
        "model");
    for (std::size_t p = 0; p < kUpdatedCounts.size() && group.rank() == 0; ++p) {
      const auto values = random_values(p + 77, kUpdatedCounts[p]);
      if (!values.empty()) std::memcpy(model.value(p), values.data(), values.size() * 4);
    }
    group.barrier();
    DenseGradients dense(exchange);
    PartitionedUpdate update(
        exchange, board, model, {&dense},
        std::vector<std::optional<UpdateRule>>(kUpdatedCounts.size(), test.rule), nullptr,
        test.clip);
    const auto mine = assign_shards(kUpdateShards, workers)[static_cast<std::size_t>(group.rank())];
    std::vector<std::int64_t> left(kUpdatedCounts.size());
    std::int64_t step = 1;
    if (test.leaves) {
      exchange.let_sums_leave([&](std::span<const std::uint32_t> parameters) {
        for (const auto p : parameters) {
          ++left[p];
          if (step < kSteps || kUpdatedCounts[p] == 0) continue;
          EXPECT_EQ(std::memcmp(model.value(p), expected[p].data(), kUpdatedCounts[p] * 4), 0) << p;
        }
      });
    }
    for (; step <= kSteps; ++step) {
      exchange.open_shards(mine.begin, mine.count());
      board.mine() = {};
      for (auto s = mine.begin; s < mine.end; ++s) {
        exchange.leaves().begin_leaf(weight_of(s));
        const auto leaf = random_leaf(kUpdatedCounts, step, s, kAbsent);
        double largest = 0;
        for (std::size_t p = 0; p < leaf.size(); ++p) {
          if (leaf[p]) exchange.leaves().write(p, leaf[p]->data(), true);
        }
        exchange.leaves().end_leaf();
        for (std::size_t p = 0; p < leaf.size(); ++p) {
          largest = std::max(largest, exchange.leaves().magnitude(p));
        }
        board.mine().all.bound += largest;
      }
      exchange.arrive({});
      const auto verdict = update.judge(1);
      ASSERT_EQ(verdict.refusal, "");
      EXPECT_EQ(verdict.folded, test.clip.norm > 0);
      const auto& outcome = exchange.complete([&] { update.apply(verdict, 1); });
      auto report = outcome.report;
      update.commit(outcome.touched, report);
    }
    // The last ones may be there when all have finished, whose values nobody lets leave then.
    for (const auto times : left) EXPECT_LE(times, test.leaves ? kSteps : 0);
    if (test.leaves && workers == 1) {
      EXPECT_EQ(left, std::vector<std::int64_t>(left.size(), kSteps));
    }
    for (std::size_t p = 0; p < kUpdatedCounts.size(); ++p) {
      if (kUpdatedCounts[p] == 0) continue;
      ASSERT_EQ(std::memcmp(model.value(p), expected[p].data(), kUpdatedCounts[p] * 4), 0)
          << workers << " workers, parameter " << p;
    }
    group.barrier();
  });
}

// promise: trainer.h#Trainer
TEST(PartitionedUpdate, AnyNumberOfWorkersGivesTheBytesOfOne) {
  const std::vector<Case> cases = {
      {define(Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}), {}},
      {define(AdamW{.lr = 0.01, .weight_decay = 0.1}), {}},
      {define(Adam{.lr = 0.01}), {.norm = 0.5, .value = 1e-3}},
      {define(Adagrad{.lr = 0.1, .lr_decay = 0.2}), {}},
      {define(Adam{.lr = 0.01}), {}, true},
      {define(Adam{.lr = 0.01}), {.norm = 0.5}, true},
      {define(AdamW{.lr = 0.01}), {}, true, true},
      {define(AdamW{.lr = 0.01}), {.norm = 0.5}, false, true}};
  for (const auto& test : cases) {
    for (const int workers : kNumbersOfWorkers) expect_as_alone(workers, test);
  }
}

// promise: trainer_options.h#placement
TEST(PartitionedUpdate, WhatHasAnOwnerIsFoldedByItAlone) {
  constexpr int kWorkers = 3;
  constexpr int kOwner = 1;
  const std::vector<std::size_t> counts = {20'000, 20'000};
  const auto plan = plan_of(counts);
  std::vector<TensorSpec> specs = {plan.parameters()[0].spec, plan.parameters()[1].spec};
  specs[1].owner = 1;
  run_thread_ranks(kWorkers, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, Plan(specs, {}),
                          {.name = "model",
                           .owners = {-1, kOwner},
                           .sync_buffers = false,
                           .reports_magnitude = true});
    ShardBoard board(exchange.memory());
    SharedModel model(group, exchange.plan(), {0, 0}, false, "model");
    DenseGradients dense(exchange);
    PartitionedUpdate update(exchange, board, model, {&dense},
                             std::vector<std::optional<UpdateRule>>(2, define(Sgd{.lr = 1})),
                             nullptr, {.norm = 1e9});
    std::vector<Leaf> leaves;
    for (int r = 0; r < kWorkers; ++r) leaves.push_back(random_leaf(counts, 1, r, 0));
    const auto& mine = leaves[static_cast<std::size_t>(group.rank())];
    exchange.open_shards(group.rank(), 1);
    board.mine() = {};
    exchange.leaves().begin_leaf(1);
    for (std::size_t p = 0; p < 2; ++p) exchange.leaves().write(p, mine[p]->data(), true);
    exchange.leaves().end_leaf();
    exchange.arrive({});
    const auto verdict = update.judge(1);
    ASSERT_TRUE(verdict.folded);
    for (std::uint32_t p = 0; p < 2; ++p) {
      const auto sum = reduced(leaves, {1, 1, 1}, p, 3);
      for (int r = 0; r < kWorkers; ++r) {
        const bool is_whole = std::memcmp(exchange.nodes().sum_place(r, p), sum->data(),
                                          counts[p] * sizeof(float)) == 0;
        EXPECT_EQ(is_whole, p == 1 && r == kOwner) << "p" << p << " at rank " << r;
      }
    }
    group.barrier();
    const auto& outcome = exchange.complete([&] { update.apply(verdict, 1); });
    auto report = outcome.report;
    update.commit(outcome.touched, report);
    const auto sum = reduced(leaves, {1, 1, 1}, 1, 3);
    for (std::size_t i = 0; i < counts[1]; ++i) {
      ASSERT_EQ(reinterpret_cast<const float*>(model.value(1))[i], -(*sum)[i]) << i;
    }
    group.barrier();
  });
}

/// Plain descent by hand; it has to be given the same tiles in every step.
class Descent final : public TileUpdates {
 public:
  explicit Descent(SharedModel& model) : model_(model) {}
  void update(const ElementRange& tile, void* gradient, double rate_factor) override {
    auto* const values = reinterpret_cast<float*>(model_.value(tile.parameter)) + tile.begin;
    for (std::int64_t i = 0; i < tile.end - tile.begin; ++i) {
      values[i] -= static_cast<float>(rate_factor) * static_cast<const float*>(gradient)[i];
    }
    ++tiles[{tile.parameter, tile.begin}];
  }
  std::map<std::pair<std::uint32_t, std::int64_t>, int> tiles;

 private:
  SharedModel& model_;
};

TEST(TileUpdates, GetWhatHasNoRuleAndKeepTheirTiles) {
  const std::vector<std::size_t> counts = {20'000, 5, 9000};
  for (const double norm : {0.0, 1e9}) {  // in one sweep, and folded first
    run_thread_ranks(3, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_of(counts), {.name = "model", .reports_magnitude = true});
      ShardBoard board(exchange.memory());
      SharedModel model(group, exchange.plan(), {0, 0, 0}, false, "model");
      DenseGradients dense(exchange);
      Descent others(model);
      PartitionedUpdate update(exchange, board, model, {&dense},
                               {std::nullopt, define(Sgd{.lr = 1}), std::nullopt}, &others,
                               {.norm = norm, .value = 50});
      std::vector<Values> expected;
      for (const auto count : counts) expected.emplace_back(count);
      for (std::int64_t step = 1; step <= 3; ++step) {
        std::vector<Leaf> leaves;
        for (int r = 0; r < 3; ++r) leaves.push_back(random_leaf(counts, step, r, 0));
        exchange.open_shards(group.rank(), 1);
        board.mine() = {};
        exchange.leaves().begin_leaf(1);
        for (std::size_t p = 0; p < counts.size(); ++p) {
          exchange.leaves().write(p, leaves[static_cast<std::size_t>(group.rank())][p]->data(),
                                  true);
        }
        exchange.leaves().end_leaf();
        exchange.arrive({});
        const auto verdict = update.judge(1);
        ASSERT_EQ(verdict.refusal, "");
        auto report = exchange.complete([&] { update.apply(verdict, 1); }).report;
        update.commit(std::vector<std::uint8_t>(3, 1), report);
        for (std::size_t p = 0; p < counts.size(); ++p) {
          const auto sum = *reduced(leaves, {1, 1, 1}, p, 3);
          for (std::size_t i = 0; i < sum.size(); ++i) {
            expected[p][i] -= std::clamp(sum[i], -50.0f, 50.0f);
          }
        }
      }
      group.barrier();
      for (std::size_t p = 0; p < counts.size(); ++p) {
        EXPECT_EQ(std::memcmp(model.value(p), expected[p].data(), counts[p] * 4), 0) << p;
      }
      for (const auto& [tile, times] : others.tiles) EXPECT_EQ(times, 3) << tile.second;
      EXPECT_EQ(update.updates(), (std::vector<std::int64_t>{3, 3, 3}));
      group.barrier();
    });
  }
}

TEST(PartitionedUpdate, TheEarliestBadShardIsNamedByAll) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of({4, 4}), {.name = "model", .reports_magnitude = true});
    ShardBoard board(exchange.memory());
    SharedModel model(group, exchange.plan(), {0, 0}, false, "model");
    DenseGradients dense(exchange);
    PartitionedUpdate update(exchange, board, model, {&dense},
                             std::vector<std::optional<UpdateRule>>(2, define(Sgd{.lr = 0})),
                             nullptr, {});
    exchange.open_shards(group.rank(), 1);
    board.mine() = {};
    exchange.leaves().begin_leaf(1);
    exchange.leaves().end_leaf();
    if (group.rank() > 0) {
      board.mine().all.bad_shard = group.rank();
      board.mine().all.bad_parameter = 2 - group.rank();
    }
    exchange.arrive({});
    // A part that was asked before has refused the step.
    Verdict refused;
    refused.refusal = "its own reason";
    EXPECT_EQ(update.judge(1, refused).refusal, "its own reason");
    EXPECT_EQ(update.judge(1).refusal, "the gradient of \"p1\" in shard 1 is not finite");
    exchange.complete([] {});
  });
}

TEST(PartitionedUpdate, AGradientIsReadOnAnyWorkerWhetherOwnersHaveKeptItOrNot) {
  const std::vector<std::size_t> counts = {20'000, 5};
  for (const double norm : {0.0, 1e9}) {
    run_thread_ranks(3, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_of(counts), {.name = "model", .reports_magnitude = true});
      ShardBoard board(exchange.memory());
      SharedModel model(group, exchange.plan(), {0, 0}, false, "model");
      DenseGradients dense(exchange);
      PartitionedUpdate update(exchange, board, model, {&dense},
                               std::vector<std::optional<UpdateRule>>(2, define(Sgd{.lr = 1})),
                               nullptr, {.norm = norm});
      std::vector<Leaf> leaves;
      for (int r = 0; r < 3; ++r) leaves.push_back(random_leaf(counts, 1, r, 0));
      exchange.open_shards(group.rank(), 1);
      board.mine() = {};
      exchange.leaves().begin_leaf(1);
      for (std::size_t p = 0; p < counts.size(); ++p) {
        exchange.leaves().write(p, leaves[static_cast<std::size_t>(group.rank())][p]->data(), true);
      }
      exchange.leaves().end_leaf();
      exchange.arrive({});
      const auto verdict = update.judge(1);
      EXPECT_EQ(verdict.folded, norm > 0);
      for (std::uint32_t p = 0; p < counts.size(); ++p) {
        Values got(counts[p]);
        update.read_gradient(verdict, p, reinterpret_cast<std::byte*>(got.data()));
        EXPECT_EQ(got, *reduced(leaves, {1, 1, 1}, p, 3)) << "p" << p << ", norm " << norm;
      }
      exchange.complete([&] { update.apply(verdict, 1); });
      group.barrier();
    });
  }
}

TEST(PartitionedUpdate, ASumThatOverflowsIsSeenBeforeAnythingIsUpdated) {
  struct Overflow {
    float gradient;
    double loss_scale;
  };
  for (const Overflow one : {Overflow{3e38f, 1}, Overflow{1e10f, 1e-30}}) {
    run_thread_ranks(2, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_of({4}), {.name = "model", .reports_magnitude = true});
      ShardBoard board(exchange.memory());
      SharedModel model(group, exchange.plan(), {0}, false, "model");
      DenseGradients dense(exchange);
      PartitionedUpdate update(exchange, board, model, {&dense}, {define(Sgd{.lr = 0})}, nullptr,
                               {});
      const Values gradient(4, one.gradient);
      exchange.open_shards(group.rank(), 1);
      board.mine() = {};
      exchange.leaves().begin_leaf(1);
      exchange.leaves().write(0, gradient.data(), true);
      exchange.leaves().end_leaf();
      board.mine().all.bound = exchange.leaves().magnitude(0);
      exchange.arrive({});
      const auto verdict = update.judge(one.loss_scale);
      EXPECT_NE(verdict.refusal, "") << one.gradient;
      EXPECT_FALSE(verdict.finite) << one.gradient;
      exchange.complete([] {});
    });
  }
}

}  // namespace
}  // namespace tutti::test
