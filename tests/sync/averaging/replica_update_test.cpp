// Parameters that logical workers have for themselves: any number of workers gives the bytes of a
// scalar model in which each logical worker trains alone and the test averages the copies.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "comm/link/link_engine.h"
#include "comm/on_hosts.h"
#include "kernels/int8_model.h"
#include "kernels/rules/registry.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "sync/averaging/replica_update.h"
#include "sync/gradient_oracle.h"
#include "sync/nodes/logical_workers.h"
#include "sync/plan/assignment.h"
#include "sync/step/dense_gradients.h"
#include "sync/update/partitioned_update.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

const std::vector<std::size_t> kReplicaCounts = {9000, 3, 0, 4096, 4097};
/// All logical workers share the second one.
constexpr std::uint32_t kShared = 1;
const UpdateRule kRule = define(AdamW{.lr = 0.01, .weight_decay = 0.1});
constexpr std::int64_t kShards = 7;
constexpr std::int64_t kSteps = 8;

Plan plan_with_one_shared() {
  const auto plan = plan_of(kReplicaCounts);
  std::vector<TensorSpec> specs;
  for (const auto& entry : plan.parameters()) {
    specs.push_back(entry.spec);
    specs.back().is_per_replica = specs.size() != kShared + 1;
  }
  return {std::move(specs), {}};
}

double weight_of(std::int64_t shard) { return shard == 4 ? 0 : static_cast<double>(1 + shard % 3); }
/// The last parameter is touched by few, and by nobody in most steps.
Leaf leaf_of(std::int64_t step, std::int64_t shard) {
  auto leaf = random_leaf(kReplicaCounts, step, shard, 3);
  leaf.back() = step % 3 == 1 && shard == 0 ? std::optional(random_values(7, kReplicaCounts.back()))
                                            : std::nullopt;
  return leaf;
}

struct Case {
  std::string name;
  std::size_t logical = 3;
  AveragingPolicyPointer averaging = {};
  StateAtAveraging state = StateAtAveraging::keep;
  /// The outer step of `averaging`, where it is diloco().
  std::optional<Diloco> outer = {};
  Clip clip = {};
  /// In this step that shard's gradient is not finite.
  std::int64_t bad_step = 0;
  std::int64_t bad_shard = 0;
  bool over_tcp = false;  ///< between hosts
  bool shares = true;     ///< kShared has a gradient: otherwise nothing travels in most steps
  /// This step fails on one worker, so that all drop it, before it is taken.
  std::int64_t failed_step = 0;
  /// What is on its way lands after this step, and each later one.
  std::optional<std::int64_t> lands_after = {};
  std::optional<std::chrono::milliseconds> deadline = {};
  /// Called on every worker after each step.
  std::function<void(const Job& job, std::int64_t step)> after = {};
};

/// What one logical worker has of all parameters.
struct Copy {
  std::vector<Values> values, first, second;
  std::vector<std::int64_t> updates;
};

// ---- the scalar model ----

/// Along the tree over the copies, then divided.
Values mean_of(const std::vector<Copy>& copies, const std::function<Values&(Copy&)>& pick) {
  std::vector<std::optional<Values>> all;
  for (auto copy : copies) all.emplace_back(pick(copy));
  auto mean = *fold_range(all, 0, all.size());
  for (auto& v : mean) v /= static_cast<float>(copies.size());
  return mean;
}

/// One step of a logical worker whose shards are the given ones; whether it was updated.
bool step_alone(const Case& test, std::int64_t step, const ShardRange& shards, Copy& copy,
                std::vector<std::uint8_t>& moved) {
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  double sum = 0;
  for (auto s = shards.begin; s < shards.end; ++s) {
    if (step == test.bad_step && s == test.bad_shard) return false;
    leaves.push_back(leaf_of(step, s));
    weights.push_back(weight_of(s));
    sum += weights.back();
  }
  std::vector<std::optional<Values>> gradients;
  double squares = 0;
  for (std::size_t p = 0; p < kReplicaCounts.size(); ++p) {
    gradients.push_back(p == kShared ? std::nullopt : reduced(leaves, weights, p, sum));
    if (!gradients[p]) continue;
    squares += squares_of(*gradients[p]);
  }
  for (std::size_t p = 0; p < kReplicaCounts.size(); ++p) {
    if (!gradients[p]) continue;
    moved[p] = 1;
    update(
        kRule.at({.step = ++copy.updates[p]}),
        {.dtype = DType::float32,
         .gradient = gradients[p]->data(),
         .parameter = copy.values[p].data(),
         .states = {copy.first[p].data(), copy.second[p].data()},
         .count = static_cast<std::int64_t>(kReplicaCounts[p]),
         .gradient_scale =
             test.clip.norm > 0 ? std::min(1.0, test.clip.norm / (std::sqrt(squares) + 1e-6)) : 1});
  }
  return true;
}

/// `values`, and what they lack is left in `residual`.
Values sent_of(Values values, Values& residual) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += residual[i];
  const auto sent = as_int8(values);
  for (std::size_t i = 0; i < values.size(); ++i) residual[i] = values[i] - sent[i];
  return sent;
}

/// Each copy sends its difference; the mean of these comes back.
Values mean_in_8_bits(std::size_t p, std::vector<Copy>& copies, const Values& before,
                      std::vector<Values>& residuals) {
  auto differences = copies;
  for (std::size_t l = 0; l < copies.size(); ++l) {
    auto& values = differences[l].values[p];
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= before[i];
    values = sent_of(values, residuals[l]);
  }
  auto mean = sent_of(mean_of(differences, [&](Copy& copy) -> Values& { return copy.values[p]; }),
                      residuals.back());
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = before[i] + mean[i];
  return mean;
}

Values mean_of_copies(const Case& test, std::size_t p, std::vector<Copy>& copies,
                      const Values& before, std::vector<Values>& residuals) {
  if (test.outer && test.outer->int8) return mean_in_8_bits(p, copies, before, residuals);
  return mean_of(copies, [&](Copy& copy) -> Values& { return copy.values[p]; });
}

/// The mean, which was taken in `step`, becomes the value of all copies.
void combine(const Case& test, std::int64_t step, std::size_t logical, Values& mean, Values& before,
             Values& kept) {
  const bool takes_outer_step = test.outer && step > *test.outer->warm_up;
  if (test.outer && !takes_outer_step) before = mean;
  for (std::size_t i = 0; i < mean.size() && (takes_outer_step || !test.outer); ++i) {
    if (test.averaging->states() == 0) break;
    const double momentum =
        takes_outer_step ? test.outer->momentum : 1 - 1 / static_cast<double>(logical);
    const double rate = takes_outer_step ? test.outer->rate : 1;
    const double last = kept[i];
    const double delta =
        momentum * last + rate * (static_cast<double>(mean[i]) - static_cast<double>(before[i]));
    const double ahead = takes_outer_step ? momentum * (delta - last) : 0;
    mean[i] = static_cast<float>((before[i] + delta) + ahead);
    kept[i] = static_cast<float>(delta);
    before[i] = mean[i];
  }
}

/// Copies of parameter p become one. Residuals are each copy's, and last the mean's.
void average_parameters(const Case& test, std::int64_t step, std::size_t p,
                        std::vector<Copy>& copies, Values& before, Values& kept,
                        std::vector<Values>& residuals) {
  auto mean = mean_of_copies(test, p, copies, before, residuals);
  combine(test, step, copies.size(), mean, before, kept);
  const auto first = mean_of(copies, [&](Copy& copy) -> Values& { return copy.first[p]; });
  const auto second = mean_of(copies, [&](Copy& copy) -> Values& { return copy.second[p]; });
  std::int64_t most = 0;
  for (const auto& copy : copies) most = std::max(most, copy.updates[p]);
  for (auto& copy : copies) {
    copy.values[p] = mean;
    if (test.state == StateAtAveraging::average) {
      copy.first[p] = first;
      copy.second[p] = second;
      copy.updates[p] = most;
    } else if (test.state == StateAtAveraging::reset) {
      std::fill(copy.first[p].begin(), copy.first[p].end(), 0.0f);
      std::fill(copy.second[p].begin(), copy.second[p].end(), 0.0f);
      copy.updates[p] = 0;
    }
  }
}

void mix(Values& copy, const Values& values, double own) {
  for (std::size_t i = 0; i < copy.size(); ++i) {
    copy[i] = static_cast<float>(own * double{copy[i]} + (1 - own) * double{values[i]});
  }
}

/// The buckets of per-replica parameters are {p0}, {p2, p3, p4}; three fragments are {p0, p2},
/// {p3}, {p4}.
bool is_due(const Case& test, std::int64_t step, std::size_t p) {
  if (!test.outer) return test.averaging->due(step, p == 0 ? 0 : 1, 2);
  const auto after = step - *test.outer->warm_up;
  if (after <= 0 || test.outer->fragments == 1) return after <= 0 || after % 3 == 0;
  return after % 3 == (p == 3 ? 2 : p == 4 ? 0 : 1);
}

/// What the copies and the averaging have after the last step.
struct Expected {
  std::vector<Copy> copies;
  std::vector<Values> in_flight;  ///< by parameter
  std::vector<std::int64_t> sent_in;
  std::vector<std::vector<Values>> residuals;
};

Expected expected_of(const Case& test) {
  const auto logical = logical_workers(kShards, static_cast<std::int64_t>(test.logical));
  Copy start;
  std::vector<Values> kept;
  std::vector<std::vector<Values>> residuals;
  for (std::size_t p = 0; p < kReplicaCounts.size(); ++p) {
    residuals.emplace_back(test.logical + 1, Values(kReplicaCounts[p]));
    start.values.push_back(random_values(p + 77, kReplicaCounts[p]));
    start.first.emplace_back(kReplicaCounts[p]);
    start.second.emplace_back(kReplicaCounts[p]);
    kept.emplace_back(kReplicaCounts[p]);
  }
  start.updates.resize(kReplicaCounts.size());
  auto before = start.values;
  std::vector<Copy> copies(test.logical, start);
  std::vector<std::uint8_t> moved(kReplicaCounts.size());
  std::vector<Values> in_flight(kReplicaCounts.size());
  std::vector<std::int64_t> sent_in(kReplicaCounts.size());
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    for (std::size_t l = 0; l < copies.size(); ++l) {
      step_alone(test, step, logical[l], copies[l], moved);
    }
    for (std::size_t p = 0; p < kReplicaCounts.size() && test.averaging; ++p) {
      if (sent_in[p] != 0 && step == sent_in[p] + test.outer->overlap) {
        combine(test, sent_in[p], copies.size(), in_flight[p], before[p], kept[p]);
        for (auto& copy : copies) mix(copy.values[p], in_flight[p], test.outer->own);
        sent_in[p] = 0;
        moved[p] = 1;
      }
      if (p == kShared || moved[p] == 0 || !is_due(test, step, p)) continue;
      if (test.outer && test.outer->overlap > 0 && step > *test.outer->warm_up) {
        in_flight[p] = mean_of_copies(test, p, copies, before[p], residuals[p]);
        sent_in[p] = step;
      } else {
        average_parameters(test, step, p, copies, before[p], kept[p], residuals[p]);
      }
      moved[p] = 0;
    }
  }
  return {copies, in_flight, sent_in, residuals};
}

// ---- the same by workers ----

void expect_equal(const void* is, const Values& should, const std::string& what) {
  if (should.empty()) return;
  EXPECT_EQ(std::memcmp(is, should.data(), should.size() * sizeof(float)), 0) << what;
}

/// Bytes that cross hosts, in order and over links.
struct Across {
  std::atomic<std::uint64_t> in_order{0};
  std::atomic<std::uint64_t> by_links{0};
};

/// A step that one worker drops.
void drop_step(StepExchange& exchange, const ShardRange& mine) {
  if (exchange.group().rank() == exchange.group().size() - 1) {
    exchange.protocol().fail("on purpose");
    return;
  }
  const auto take = [&] {
    exchange.open_shards(mine.begin, mine.count());
    for (auto s = mine.begin; s < mine.end; ++s) {
      exchange.leaves().begin_leaf(1);
      exchange.leaves().end_leaf();
    }
    exchange.arrive({});
  };
  EXPECT_THROW(take(), PeerFailed);
}

/// What crosses hosts is added to `*across`.
ThreadOutcome compare_with_model(int workers, const Case& test, const ThreadOptions& options = {},
                                 Across* across = nullptr) {
  const auto expected = expected_of(test);
  return try_thread_ranks(
      workers,
      [&](const Job& job) {
        const Group group(job);
        if (test.over_tcp && job.rank() == 0) set_link_engine({});
        group.barrier();
        const auto logical = logical_workers(kShards, static_cast<std::int64_t>(test.logical));
        std::vector<std::int64_t> cuts;
        for (const auto& range : logical) cuts.push_back(range.begin);
        const auto carried = assign_shards(kShards, workers);
        const auto mine = carried[static_cast<std::size_t>(group.rank())];
        std::vector<int> hosts;
        for (int r = 0; r < workers; ++r) hosts.push_back(group.state()->host_of(r));
        const auto is_on_one = on_one_host(logical, carried, hosts);
        StepExchange exchange(group, plan_with_one_shared(),
                              {.name = "model",
                               .node_boundaries = cuts,
                               .sync_buffers = false,
                               .stays =
                                   [&](const PlanEntry& parameter, int, std::int64_t leaf) {
                                     std::size_t l = 0;
                                     while (mine.begin + leaf >= logical[l].end) ++l;
                                     return parameter.spec.is_per_replica && is_on_one[l];
                                   },
                               .reports_magnitude = true,
                               .deadline = test.deadline});
        ShardBoard board(exchange.memory());
        const std::vector<int> states(kReplicaCounts.size(), 2);
        SharedModel model(group, exchange.plan(), states, false, "model");
        const bool is_first = group.state()->team().rank == 0;  // of its host
        for (std::size_t p = 0; p < kReplicaCounts.size() && is_first; ++p) {
          const auto values = random_values(p + 77, kReplicaCounts[p]);
          if (!values.empty()) std::memcpy(model.value(p), values.data(), values.size() * 4);
        }
        group.barrier();
        ReplicaCopies copies(group, exchange.plan(), model, states, test.logical, "model",
                             ReplicaHosts(*group.state(), carriers_of(logical, carried)));
        std::unique_ptr<ReplicaAveraging> averaging;
        if (test.averaging) {
          averaging = std::make_unique<ReplicaAveraging>(
              exchange.memory(), exchange.plan(), copies,
              AveragingOptions{test.averaging, test.state, 5000,
                               std::vector<std::vector<double>>(kReplicaCounts.size(), {0, 0}),
                               "model"});
        }
        for (const auto p : copies.parameters()) {
          if (!is_first) continue;
          copies.spread(p);
          if (averaging) averaging->restart(p);
        }
        group.barrier();
        const std::vector<std::optional<UpdateRule>> rules(kReplicaCounts.size(), kRule);
        DenseGradients dense(exchange);
        PartitionedUpdate update(exchange, board, model, {&dense}, rules, nullptr, test.clip);
        ReplicaUpdate own(exchange, board, copies, logical, rules, test.clip, averaging.get());
        const auto before = job.state()->bytes_to_hosts();
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          if (step == test.failed_step) drop_step(exchange, mine);
          exchange.open_shards(mine.begin, mine.count());
          board.mine() = {};
          for (auto s = mine.begin; s < mine.end; ++s) {
            exchange.leaves().begin_leaf(weight_of(s));
            const auto leaf = leaf_of(step, s);
            std::size_t l = 0;
            while (s >= logical[l].end) ++l;
            auto& facts = board.mine().own[l];
            double largest = 0;
            for (std::size_t p = 0; p < leaf.size(); ++p) {
              if (p == kShared && !test.shares) continue;
              if (leaf[p]) exchange.leaves().write(p, leaf[p]->data(), true);
            }
            exchange.leaves().end_leaf();
            for (std::size_t p = 0; p < leaf.size(); ++p) {
              largest = std::max(largest, exchange.leaves().magnitude(p));
            }
            facts.bound += largest;
            board.mine().all.bound += largest;
            if (step == test.bad_step && s == test.bad_shard) facts.note_bad(s, 3);
          }
          board.send();
          exchange.arrive({});
          const auto verdict = update.judge(1);
          ASSERT_EQ(verdict.refusal, "");
          own.collect_nodes(1);
          const auto& locals = own.judge(step);
          for (std::size_t l = 0; l < locals.size(); ++l) {
            const bool is_bad = step == test.bad_step && test.bad_shard >= logical[l].begin &&
                                test.bad_shard < logical[l].end;
            EXPECT_EQ(locals[l].refusal,
                      is_bad ? "the gradient of \"p3\" in shard 3 is not finite" : "");
          }
          std::vector<double> squares;
          for (const auto& local : locals) squares.push_back(local.squares);
          auto first = squares;
          group.broadcast({first.data(), static_cast<std::int64_t>(first.size()), DType::float64},
                          0);
          EXPECT_EQ(squares, first) << test.name << ", rank " << group.rank();
          const auto& outcome = exchange.complete([&] {
            update.apply(verdict, 1);
            own.apply(1);
          });
          auto report = outcome.report;
          update.commit(outcome.touched, report);
          own.commit();
          if (step >= test.lands_after.value_or(kSteps + 1))
            exchange.protocol().run_collectives([&] { own.land(); });
          if (test.after) test.after(job, step);
        }
        if (across != nullptr) {
          across->in_order += job.state()->bytes_to_hosts() - before;
          const int host = group.state()->host_of(group.rank());
          if (is_first) across->by_links += options.world->hosts()->link_bytes_from(host);
          group.barrier();
        }
        std::vector<std::size_t> all(copies.size());
        std::iota(all.begin(), all.end(), std::size_t{0});
        copies.bring(all);
        for (std::size_t l = 0; l < copies.size(); ++l) {
          for (const auto p : copies.parameters()) {
            const auto what = test.name + ", " + std::to_string(workers) + " workers, p" +
                              std::to_string(p) + " of " + std::to_string(l);
            const auto& copy = copies.of(l);
            expect_equal(copy.value(p), expected.copies[l].values[p], what);
            expect_equal(copy.state(p, 0), expected.copies[l].first[p], what + ", first");
            expect_equal(copy.state(p, 1), expected.copies[l].second[p], what + ", second");
            EXPECT_EQ(own.rules()[l].updates()[p], expected.copies[l].updates[p]) << what;
          }
        }
        if (test.lands_after) {
          averaging->bring_kept();
          for (const auto p : copies.parameters()) {
            const auto what = test.name + ", p" + std::to_string(p);
            const auto& kept = *averaging->kept();
            const int last = kept.states(p) - 1;
            if (expected.sent_in[p] != 0) {
              expect_equal(kept.state(p, last), expected.in_flight[p], what);
            }
            for (std::size_t l = 0; l <= copies.size() && test.outer->int8; ++l) {
              const auto k = last - 1 - static_cast<int>(copies.size() - l);
              expect_equal(kept.state(p, k), expected.residuals[p][l], what + ", residual");
            }
          }
        }
        group.barrier();
      },
      options);
}

void expect_as_model(int workers, const Case& test, const ThreadOptions& options = {},
                     Across* across = nullptr) {
  for (const auto& error : compare_with_model(workers, test, options, across).errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = {
      {.name = "per-replica"},
      {.name = "per-replica, clipped", .logical = 5, .clip = {.norm = 0.5}},
      {.name = "one is bad", .bad_step = 3, .bad_shard = 3},
      {.name = "local SGD", .averaging = local_sgd(2, 1)},
      {.name = "averaged", .averaging = local_sgd(3), .state = StateAtAveraging::average},
      {.name = "reset", .logical = 7, .averaging = local_sgd(3), .state = StateAtAveraging::reset},
      {.name = "block momentum",
       .logical = 5,
       .averaging = block_momentum(2),
       .bad_step = 4,
       .bad_shard = 3},
      {.name = "partial", .averaging = partial_update(), .clip = {.norm = 0.5}},
      {.name = "one logical worker", .logical = 1, .averaging = block_momentum(2)}};
  const Diloco outer{.rate = 0.75, .momentum = 0.5, .warm_up = 1};
  cases.push_back({.name = "DiLoCo", .averaging = diloco(3, outer), .outer = outer});
  auto in_turn = outer;
  in_turn.fragments = 3;
  cases.push_back({.name = "DiLoCo in fragments",
                   .logical = 5,
                   .averaging = diloco(3, in_turn),
                   .outer = in_turn,
                   .bad_step = 4,
                   .bad_shard = 3});
  for (auto in_8_bits : {outer, in_turn}) {
    in_8_bits.int8 = true;
    cases.push_back({.name = "DiLoCo in 8 bits",
                     .logical = 5,
                     .averaging = diloco(3, in_8_bits),
                     .outer = in_8_bits,
                     .bad_step = 4,
                     .bad_shard = 3});
  }
  auto later = outer;
  later.overlap = 1;
  cases.push_back({.name = "DiLoCo with overlap", .averaging = diloco(3, later), .outer = later});
  later.overlap = 2;
  later.own = 0.25;
  later.int8 = true;
  cases.push_back({.name = "DiLoCo with overlap, in 8 bits",
                   .logical = 5,
                   .averaging = diloco(3, later),
                   .outer = later,
                   .bad_step = 5,
                   .bad_shard = 3});
  return cases;
}

// promise: averaging.h#after, averaging.h#own, averaging.h#values
TEST(ReplicaUpdate, AnyNumberOfWorkersGivesTheBytesOfTheScalarModel) {
  for (const auto& test : all_cases()) {
    for (const int workers : kNumbersOfWorkers) expect_as_model(workers, test);
  }
}

TEST(ReplicaUpdate, SeveralHostsGiveTheBytesOfTheScalarModel) {
  for (const auto& test : all_cases()) {
    expect_as_model(4, test, on(even_hosts(4, 2)));
    if (!kSanitized) expect_as_model(3, test, on(even_hosts(3, 3)));
    // A logical worker has workers of both.
    expect_as_model(4, test, on(HostMap::of(std::vector<RankSet>{{0, 2}, {1, 3}})));
    auto over_tcp = test;
    over_tcp.over_tcp = true;
    expect_as_model(3, over_tcp, on(even_hosts(3, 2)));
  }
}

std::vector<Case> overlapping_cases() {
  auto cases = all_cases();
  std::erase_if(cases, [](const Case& test) { return !test.outer || test.outer->overlap == 0; });
  return cases;
}

/// On two hosts of a worker each nothing but averaging needs links, and those of host 1 fall silent
/// after that step.
ThreadOptions silence_after(std::int64_t silent, Case& test) {
  const auto options = on(even_hosts(2, 2));
  test.shares = false;
  test.logical = 2;
  test.after = [silent, hosts = options.world](const Job& job, std::int64_t step) {
    if (job.rank() == 0 && step == silent) hosts->hosts()->silence_links(1);
  };
  return options;
}

// promise: averaging.h#steps
TEST(ReplicaUpdate, WhatIsSentTravelsUntilItsMeanIsDue) {
  for (auto test : overlapping_cases()) {
    const auto options = silence_after(3, test);  // the next one sends
    test.deadline = std::chrono::seconds(1);
    std::atomic<std::int64_t> done{0};
    test.after = [&done, silence = test.after](const Job& job, std::int64_t step) {
      silence(job, step);
      if (job.rank() == 0) done = step;
    };
    const auto outcome = compare_with_model(2, test, options);
    EXPECT_EQ(done, 3 + test.outer->overlap) << test.name;
    for (const auto& error : outcome.errors) {
      ASSERT_TRUE(error);
      EXPECT_THROW(std::rethrow_exception(error), Timeout);
    }
  }
}

/// With the step its link is dropped: it is sent again.
// promise: averaging.h#steps
TEST(ReplicaUpdate, WhatIsOnItsWayOutlivesAStepThatIsDropped) {
  for (auto test : overlapping_cases()) {
    test.failed_step = 5;
    expect_as_model(3, test, on(even_hosts(3, 3)));
    const auto options = silence_after(3, test);
    expect_as_model(2, test, options);
  }
}

/// What is kept is then as on one host.
// promise: averaging.h#steps
TEST(ReplicaUpdate, WhatIsOnItsWayLandsBetweenSteps) {
  for (auto test : overlapping_cases()) {
    test.lands_after = 1;
    expect_as_model(2, test);
    expect_as_model(4, test, on(even_hosts(4, 2)));
    expect_as_model(3, test, on(even_hosts(3, 3)));
    test.lands_after = test.failed_step = kSteps;
    const auto options = silence_after(6, test);
    expect_as_model(2, test, options);
  }
}

// promise: links#what-travels-between-hosts
TEST(ReplicaUpdate, OnlyWhatIsAveragedCrossesHostsAndDirectly) {
  const Diloco outer{.rate = 0.75, .momentum = 0.5, .warm_up = 1};
  auto in_8_bits = outer;
  in_8_bits.int8 = true;
  // Two hosts of a worker each, in all steps.
  const auto run = [](const Case& test, Across& across) {
    auto options = on(even_hosts(2, 2));
    options.world = std::make_shared<ThreadWorld>(2);
    expect_as_model(2, test, options, &across);
  };
  Across none;
  Across averaged;
  Across quarter;
  run({.name = "per-replica", .logical = 2}, none);
  run({.name = "DiLoCo", .logical = 2, .averaging = diloco(3, outer), .outer = outer}, averaged);
  run({.name = "8 bits", .logical = 2, .averaging = diloco(3, in_8_bits), .outer = in_8_bits},
      quarter);
  // Of both workers, once. Of the parameter that p4 is, only where it has moved.
  const std::uint64_t once = (kReplicaCounts[0] + kReplicaCounts[3]) * sizeof(float) * 2;
  EXPECT_LT(none.in_order + none.by_links, 2 * once) << "no gradient of theirs in 8 steps";
  const auto links = averaged.by_links - none.by_links;
  EXPECT_GE(links, 2 * once);
  EXPECT_LT(links, 5 * once) << "in 3 of 8 steps";
  EXPECT_GT(static_cast<double>(links) / static_cast<double>(quarter.by_links - none.by_links),
            3.9);
  EXPECT_LT(averaged.in_order - none.in_order, links / 10);
  EXPECT_LT(quarter.in_order - none.in_order, links / 10);
}

}  // namespace
}  // namespace tutti::test
