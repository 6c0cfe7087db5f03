// A codec outside the library that needs two rounds of dense exchange: a matrix is sent as a
// column and a row. Against a scalar model of the protocol, bit for bit.

#include <numeric>

#include "sync/coded/coded_model.h"
#include "sync/whole_step.h"

namespace tutti::test::coded {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsNan;
using ::testing::Not;

/// With the least that a low-rank codec has: M ≈ p·yᵀ, where p is the direction of Σ share·M·q for
/// a fixed q, and y = Mᵀ·p. What is no matrix is sent as it is.
class OneColumn final : public Codec {
 public:
  std::string name() const override { return "one column"; }
  bool has_first_round() const override { return true; }
  std::int64_t first_round_values(std::span<const std::int64_t> shape) const override {
    return shape.size() == 2 ? shape[0] : 0;
  }
  void first_round(std::span<const float> values, const EncodeContext& context,
                   std::span<float> to) const override {
    const auto columns = static_cast<std::size_t>(context.shape[1]);
    for (std::size_t i = 0; i < to.size(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < columns; ++j) sum += values[i * columns + j] * q(j, context.step);
      to[i] = static_cast<float>(sum);
    }
  }
  std::size_t bound(std::int64_t count, const EncodeContext& context) const override {
    return sizeof(float) * static_cast<std::size_t>(is_matrix(context) ? context.shape[1] : count);
  }
  Encoded encode(std::span<const float> values, const EncodeContext& context,
                 std::byte* message) const override {
    auto* const y = reinterpret_cast<float*>(message);
    const auto count = bound(static_cast<std::int64_t>(values.size()), context) / sizeof(float);
    if (!is_matrix(context) && std::abs(values[0]) > 1e30f) return {.refusal = "too large"};
    if (is_matrix(context)) {
      const auto p = direction(context.first_sum);
      for (std::size_t j = 0; j < count; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < p.size(); ++i) sum += values[i * count + j] * p[i];
        y[j] = static_cast<float>(sum);
      }
    } else {
      std::copy(values.begin(), values.end(), y);
    }
    return {.bytes = count * sizeof(float), .values = static_cast<std::int64_t>(count)};
  }
  void decode(std::span<const std::byte> message, const EncodeContext& context, std::int64_t begin,
              std::span<float> to) const override {
    const auto* const y = reinterpret_cast<const float*>(message.data());
    const auto p = direction(context.first_sum);
    for (std::size_t k = 0; k < to.size(); ++k) {
      const auto at = static_cast<std::size_t>(begin) + k;
      const auto columns = static_cast<std::size_t>(is_matrix(context) ? context.shape[1] : 1);
      to[k] = is_matrix(context) ? p[at / columns] * y[at % columns] : y[at];
    }
  }
  std::size_t sum_bytes(std::int64_t count, std::int64_t,
                        const EncodeContext& context) const override {
    return bound(count, context);
  }

 private:
  static bool is_matrix(const EncodeContext& context) { return context.shape.size() == 2; }
  static double q(std::size_t j, std::int64_t step) {
    return static_cast<double>((static_cast<std::int64_t>(j) * 5 + step) % 7) + 1;
  }
  static Values direction(std::span<const float> sum) {
    double squares = 0;
    for (const float x : sum) squares += double{x} * x;
    Values p;
    for (const float x : sum) {
      p.push_back(squares > 0 ? static_cast<float>(x / std::sqrt(squares)) : 0.0f);
    }
    return p;
  }
};

const std::vector<std::vector<std::int64_t>> kShapes = {{40, 120}, {70}, {3, 5}};
constexpr std::int64_t kShards = 7;
constexpr std::int64_t kLogical = 3;

Plan plan_of_shapes() {
  std::vector<TensorSpec> specs;
  for (const auto& shape : kShapes) {
    const auto count =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    specs.push_back(
        {"p" + std::to_string(specs.size()), shape,
         shape.size() == 2 ? std::vector<std::int64_t>{shape[1], 1} : std::vector<std::int64_t>{1},
         count, DType::float32});
  }
  return {std::move(specs), {}};
}

std::vector<std::size_t> counts() {
  std::vector<std::size_t> all;
  const auto plan = plan_of_shapes();
  for (const auto& entry : plan.parameters()) {
    all.push_back(static_cast<std::size_t>(entry.spec.count));
  }
  return all;
}

/// Of each step the gradients, and the residuals by logical worker and parameter.
std::vector<State> model(bool error_feedback = true) {
  const OneColumn codec;
  const auto nodes = logical_workers(kShards, kLogical);
  double total = 0;
  for (std::int64_t s = 0; s < kShards; ++s) total += weight_of(s);
  State state;
  state.gradients.resize(kShapes.size());
  for (std::int64_t l = 0; l < kLogical; ++l) {
    state.residuals.emplace_back();
    for (const auto count : counts()) state.residuals.back().emplace_back(count);
  }
  std::vector<State> states;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    for (std::size_t p = 0; p < kShapes.size(); ++p) {
      EncodeContext exchange{.logical_workers = kLogical,
                             .step = step,
                             .count = static_cast<std::int64_t>(counts()[p]),
                             .shape = kShapes[p]};
      std::vector<std::optional<Values>> x(nodes.size());
      std::vector<float> share;
      std::vector<std::optional<Values>> first(static_cast<std::size_t>(kShards));
      const auto first_count = static_cast<std::size_t>(codec.first_round_values(kShapes[p]));
      for (std::size_t l = 0; l < nodes.size(); ++l) {
        std::vector<Leaf> leaves;
        std::vector<double> weights;
        double weight = 0;
        for (auto s = nodes[l].begin; s < nodes[l].end; ++s) {
          leaves.push_back(random_leaf(counts(), step, s, 3));
          weights.push_back(weight_of(s));
          weight += weight_of(s);
        }
        share.push_back(static_cast<float>(weight / total));
        x[l] = reduced(leaves, weights, p, weight);
        if (!x[l]) continue;
        for (std::size_t i = 0; error_feedback && i < x[l]->size(); ++i) {
          (*x[l])[i] += state.residuals[l][p][i];
        }
        if (first_count == 0) continue;
        auto& handed_in = first[static_cast<std::size_t>(nodes[l].begin)].emplace(first_count);
        codec.first_round(*x[l], exchange, handed_in);
        for (auto& value : handed_in) value *= share[l];
      }
      const auto sum = fold_range(first, 0, first.size());
      if (sum) exchange.first_sum = *sum;
      std::vector<std::optional<Values>> sent(static_cast<std::size_t>(kShards));
      for (std::size_t l = 0; l < nodes.size(); ++l) {
        if (!x[l]) continue;
        std::vector<std::byte> message(codec.bound(exchange.count, exchange));
        codec.encode(*x[l], exchange, message.data());
        auto& said = sent[static_cast<std::size_t>(nodes[l].begin)].emplace(x[l]->size());
        codec.decode(message, exchange, 0, said);
        for (std::size_t i = 0; i < said.size(); ++i) {
          state.residuals[l][p][i] = (*x[l])[i] - said[i];
          said[i] *= share[l];
        }
      }
      state.gradients[p] = fold_range(sent, 0, sent.size());
    }
    states.push_back(state);
  }
  return states;
}

struct TwoRounds {
  explicit TwoRounds(const Group& group, bool error_feedback = true)
      : exchange(group, plan_of_shapes(),
                 {.name = "model", .node_boundaries = cuts(), .coded = true}),
        coded(exchange, {.compression = {.codec = std::make_shared<OneColumn>(),
                                         .error_feedback = error_feedback},
                         .logical_workers = logical_workers(kShards, kLogical),
                         .shards = kShards}) {}
  static std::vector<std::int64_t> cuts() {
    std::vector<std::int64_t> begins;
    for (const auto& node : logical_workers(kShards, kLogical)) begins.push_back(node.begin);
    return begins;
  }
  /// Up to the messages; `spoil` is what shard 0 has of that parameter.
  std::string half_step(std::int64_t step, float spoil = 0, std::size_t spoilt = 0) {
    const auto mine = assign_shards(
        kShards, exchange.group().size())[static_cast<std::size_t>(exchange.group().rank())];
    exchange.open_shards(mine.begin, mine.count());
    for (auto s = mine.begin; s < mine.end; ++s) {
      exchange.leaves().begin_leaf(weight_of(s));
      auto leaf = random_leaf(counts(), step, s, 3);
      if (s == 0 && spoil != 0) leaf[spoilt] = Values(counts()[spoilt], spoil);
      for (std::size_t p = 0; p < leaf.size(); ++p) {
        if (!leaf[p]) continue;
        exchange.leaves().write(p, leaf[p]->data(), true);
        coded.wrote(static_cast<std::uint32_t>(p), 1);
      }
      exchange.leaves().end_leaf();
    }
    exchange.arrive({});
    coded.begin(1);
    return coded.prepare().text;
  }
  StepExchange exchange;
  CodedGradients coded;
};

void expect_as_two_rounds_of_model(bool error_feedback, const std::vector<int>& sizes,
                                   const ThreadOptions& options = {}) {
  const auto states = model(error_feedback);
  for (const int workers : sizes) {
    run_thread_ranks(
        workers,
        [&](const Job& job) {
          TwoRounds all(Group(job), error_feedback);
          for (std::int64_t step = 1; step <= kSteps; ++step) {
            const auto& expected = states[static_cast<std::size_t>(step - 1)];
            ASSERT_EQ(all.half_step(step), "");
            for (std::uint32_t p = 0; p < kShapes.size(); ++p) {
              if (!expected.gradients[p]) continue;
              const auto gradient = read_all(all.coded, p, counts()[p]);
              EXPECT_TRUE(same_bytes(gradient.data(), *expected.gradients[p]))
                  << "step " << step << ", parameter " << p << ", " << workers << " workers";
            }
            auto report = all.exchange.complete([&] { all.coded.note(); }).report;
            all.coded.commit(report);
            all.coded.bring_kept();
            for (std::size_t l = 0; error_feedback && l < expected.residuals.size(); ++l) {
              for (std::size_t p = 0; p < kShapes.size(); ++p) {
                EXPECT_TRUE(same_bytes(all.coded.board().kept(Kept::residual, l, p),
                                       expected.residuals[l][p]))
                    << "residual of " << l << ", step " << step << ", parameter " << p << ", "
                    << workers << " workers";
              }
            }
          }
          Group(job, "end").barrier();
        },
        options);
  }
}

// promise: codec.h#first_round, codec.h#has_first_round, codec.h#shape
TEST(TwoRounds, GiveWhatTheModelGivesOnAnyNumberOfWorkers) {
  expect_as_two_rounds_of_model(true, {1, 2, 3, 5, 8});
  expect_as_two_rounds_of_model(false, {3});
}

TEST(TwoRounds, GiveTheSameOnSeveralHosts) {
  ThreadOptions options;
  options.hosts = even_hosts(3, 2);
  expect_as_two_rounds_of_model(true, {3}, options);
}

// promise: codec.h#has_first_round, step_report.h#collectives, traffic.h#collectives
TEST(TwoRounds, BothAreCounted) {
  run_thread_ranks(2, [](const Job& job) {
    TwoRounds all((Group(job)));
    ASSERT_EQ(all.half_step(1), "");
    auto report = all.exchange.complete([&] { all.coded.note(); }).report;
    all.coded.commit(report);
    EXPECT_EQ(all.coded.traffic().collectives, 2);
    EXPECT_EQ(report.collectives, 2);
    const auto traffic = all.coded.traffic();
    ASSERT_EQ(traffic.last_step.size(), 3u);  // every parameter by itself
    for (std::size_t p = 0; p < 3; ++p) {
      const auto& bucket = traffic.last_step[p];
      const auto& shape = kShapes[p];
      const auto both =
          4 * static_cast<std::uint64_t>(shape.size() == 2 ? shape[0] + shape[1] : shape[0]);
      EXPECT_GT(bucket.messages, 0);
      // What was handed in in both, and both sums, to each of three.
      EXPECT_EQ(bucket.bytes, static_cast<std::uint64_t>(bucket.messages + 3) * both) << p;
    }
    Group(job, "end").barrier();
  });
}

// promise: codec.h#first_round
TEST(TwoRounds, WhatCannotBeHandedInDropsTheStepOnAll) {
  run_thread_ranks(3, [](const Job& job) {
    TwoRounds all((Group(job)));
    EXPECT_EQ(all.half_step(1), "");
    EXPECT_THAT(read_all(all.coded, 0, counts()[0]), Each(Not(IsNan())));
    all.exchange.complete([] {});
    // Finite, but not its sum over a row.
    EXPECT_THAT(all.half_step(2, 3e38f),
                HasSubstr("the gradient of \"p0\" in logical worker 0 cannot be sent: its first "
                          "round is not finite"));
    EXPECT_THAT(read_all(all.coded, 0, counts()[0]), Each(IsNan()))
        << "not those of the step before";
    all.exchange.protocol().fail("refused");
    // Nor is a refusal of the second round seen by some in the first.
    EXPECT_THAT(all.half_step(3, 3e38f, 1),
                HasSubstr("the gradient of \"p1\" in logical worker 0 cannot be sent: too large"));
    all.exchange.protocol().fail("refused");
    EXPECT_EQ(all.half_step(4), "");
    all.exchange.complete([] {});
    Group(job, "end").barrier();
  });
}

}  // namespace
}  // namespace tutti::test::coded
