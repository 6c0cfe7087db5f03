// Codecs in the step protocol, with ranks as threads, against a scalar model: what is sent, what is
// left, and the sum, bit for bit, on any number of workers.

#include "sync/coded_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "codec/codec_model.h"
#include "support/thread_ranks.h"
#include "sync/assignment.h"
#include "sync/gradient_oracle.h"
#include "sync/logical_workers.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

/// Around tiles and vectors; two larger than the fusion limit of the tests.
const std::vector<std::size_t> kCounts = {1, 63, 65, 4095, 4097, 9'000, 0, 17};
constexpr std::int64_t kFusion = 4096;
constexpr std::int64_t kSteps = 3;

double weight_of(std::int64_t shard) { return static_cast<double>(1 + (shard * 5) % 3); }

struct Case {
  std::string codec;
  std::int64_t shards = 7;
  std::int64_t logical_workers = 4;
  bool error_feedback = true;
  CodecScope scope = CodecScope::group;
  double clamp = 0;
  Transport transport = Transport::by_size;
  std::string text() const {
    return codec + ", " + std::to_string(shards) + " shards, " + std::to_string(logical_workers) +
           " logical workers, clamp " + std::to_string(clamp);
  }
};

/// What is left of every step: the gradients of all parameters, and the residuals.
struct State {
  std::vector<std::optional<Values>> gradients;
  std::vector<std::vector<Values>> residuals;  ///< by logical worker and parameter
};

ParameterGroups groups_of(const Case& test) {
  std::vector<std::int64_t> counts(kCounts.begin(), kCounts.end());
  std::vector<std::uint32_t> order;
  for (std::uint32_t p = 0; p < counts.size(); ++p) order.push_back(p);
  if (test.scope == CodecScope::group) return fuse(order, counts, kFusion, kFusion);
  ParameterGroups groups;
  for (const auto p : order) groups.push_back({p});
  return groups;
}

/// One step of the model; `state` is that of the step before.
void step_of_model(const Case& test, std::int64_t step, State& state) {
  const auto nodes = logical_workers(test.shards, test.logical_workers);
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  double total = 0;
  for (std::int64_t s = 0; s < test.shards; ++s) {
    leaves.push_back(random_leaf(kCounts, step, s, 3));
    weights.push_back(weight_of(s));
    total += weights.back();
  }
  // By parameter and first leaf of its logical worker.
  std::vector<std::vector<std::optional<Values>>> sent(
      kCounts.size(), std::vector<std::optional<Values>>(static_cast<std::size_t>(test.shards)));
  for (std::size_t l = 0; l < nodes.size(); ++l) {
    const auto first = static_cast<std::size_t>(nodes[l].begin);
    const auto last = static_cast<std::size_t>(nodes[l].end);
    const std::vector<Leaf> mine(leaves.begin() + nodes[l].begin, leaves.begin() + nodes[l].end);
    const std::vector<double> own(weights.begin() + nodes[l].begin, weights.begin() + nodes[l].end);
    double weight = 0;
    for (auto s = first; s < last; ++s) weight += weights[s];
    for (const auto& group : groups_of(test)) {
      Values all;
      std::vector<std::uint32_t> touched;
      for (const auto p : group) {
        auto x = reduced(mine, own, p, weight);
        if (!x) continue;
        touched.push_back(p);
        for (std::size_t i = 0; i < x->size(); ++i) {
          auto& value = (*x)[i];
          if (test.clamp > 0) {
            const auto bound = static_cast<float>(test.clamp);
            value = std::min(std::max(value, -bound), bound);
          }
          if (test.error_feedback) value += state.residuals[l][p][i];
        }
        all.insert(all.end(), x->begin(), x->end());
      }
      if (all.empty()) continue;
      const auto said = sent_by(test.codec, all);
      std::size_t at = 0;
      for (const auto p : touched) {
        Values values(said.begin() + static_cast<std::ptrdiff_t>(at),
                      said.begin() + static_cast<std::ptrdiff_t>(at + kCounts[p]));
        for (std::size_t i = 0; i < kCounts[p]; ++i, ++at) {
          if (test.error_feedback) {
            state.residuals[l][p][i] = all[at] - said[at];
            // Nothing is lost and nothing comes in.
            ASSERT_EQ(state.residuals[l][p][i] + said[at], all[at]);
          }
          values[i] *= static_cast<float>(weight / total);
        }
        sent[p][first] = std::move(values);
      }
    }
  }
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    state.gradients[p] = fold_range(sent[p], 0, sent[p].size());
    if (!state.gradients[p]) continue;
    for (auto& value : *state.gradients[p]) {
      if (test.codec == "half") value = as_half(value);
      if (test.codec == "bfloat16") value = as_bfloat16(value);
    }
  }
}

std::vector<State> model_of(const Case& test) {
  State state;
  state.gradients.resize(kCounts.size());
  for (std::int64_t l = 0; l < test.logical_workers; ++l) {
    state.residuals.emplace_back();
    for (const auto count : kCounts) state.residuals.back().emplace_back(count);
  }
  std::vector<State> states;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    step_of_model(test, step, state);
    states.push_back(state);
  }
  return states;
}

bool same_bytes(const float* a, const Values& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

class Workers {
 public:
  Workers(const Group& group, const Case& test)
      : test_(test),
        exchange_(group, plan_of(kCounts), options_of(test)),
        coded_(exchange_, {.compression = {.codec = codec_of(test.codec),
                                           .error_feedback = test.error_feedback,
                                           .scope = test.scope,
                                           .fusion = kFusion,
                                           .clamp = test.clamp,
                                           .transport = test.transport},
                           .logical_workers = logical_workers(test.shards, test.logical_workers),
                           .shards = test.shards,
                           .name = "model"}),
        mine_(assign_shards(test.shards, group.size())[static_cast<std::size_t>(group.rank())]) {}

  /// Up to the messages.
  std::string half_step(std::int64_t step, double loss_scale) {
    exchange_.open_shards(mine_.begin, mine_.count());
    for (auto s = mine_.begin; s < mine_.end; ++s) {
      exchange_.begin_leaf(weight_of(s));
      auto leaf = random_leaf(kCounts, step, s, 3);
      for (std::size_t p = 0; p < leaf.size(); ++p) {
        if (!leaf[p]) continue;
        for (auto& value : *leaf[p]) value *= static_cast<float>(loss_scale);
        exchange_.write(p, leaf[p]->data(), true);
        coded_.wrote(static_cast<std::uint32_t>(p), loss_scale);
      }
      exchange_.end_leaf();
    }
    made_early_ = coded_.made_early();
    exchange_.arrive({});
    return coded_.encode(loss_scale).text;
  }

  void step(std::int64_t number, const State& expected) {
    // A power of two goes in and out without a trace.
    ASSERT_EQ(half_step(number, number % 2 == 0 ? 8 : 1), "");
    Values gradient;
    for (std::uint32_t p = 0; p < kCounts.size(); ++p) {
      if (!expected.gradients[p]) continue;
      gradient.resize(kCounts[p]);
      coded_.reduce(p, 0, static_cast<std::int64_t>(kCounts[p]), gradient.data());
      EXPECT_TRUE(same_bytes(gradient.data(), *expected.gradients[p]))
          << test_.text() << ": step " << number << ", parameter " << p << ", "
          << exchange_.group().size() << " workers";
    }
    exchange_.complete([this] { coded_.note_messages(); });
    coded_.commit();
    if (!test_.error_feedback) return;
    for (std::size_t l = 0; l < expected.residuals.size(); ++l) {
      for (std::size_t p = 0; p < kCounts.size(); ++p) {
        EXPECT_TRUE(same_bytes(coded_.board().residual(l, p), expected.residuals[l][p]))
            << test_.text() << ": residual of " << l << ", step " << number << ", parameter " << p
            << ", " << exchange_.group().size() << " workers";
      }
    }
  }

  StepExchange& exchange() { return exchange_; }
  CodedGradients& coded() { return coded_; }
  /// Before the last step was published.
  std::size_t made_early() const { return made_early_; }

 private:
  static ExchangeOptions options_of(const Case& test) {
    std::vector<std::int64_t> cuts;
    for (const auto& node : logical_workers(test.shards, test.logical_workers)) {
      cuts.push_back(node.begin);
    }
    return {.name = "model", .cuts = cuts, .coded = true, .sync_buffers = false};
  }

  Case test_;
  StepExchange exchange_;
  CodedGradients coded_;
  ShardRange mine_;
  std::size_t made_early_ = 0;
};

void expect_as_model(const Case& test, const std::vector<int>& sizes) {
  const auto states = model_of(test);
  for (const int workers : sizes) {
    run_thread_ranks(workers, [&](const Job& job) {
      Workers all(Group(job), test);
      for (std::int64_t step = 1; step <= kSteps; ++step) {
        all.step(step, states[static_cast<std::size_t>(step - 1)]);
      }
      Group(job, "end").barrier();
    });
  }
}

TEST(CodedGradients, AnyNumberOfWorkersGivesWhatTheModelGives) {
  for (const auto* codec : {"half", "bfloat16", "threshold:300", "topk:0.05"}) {
    expect_as_model({.codec = codec}, {1, 2, 3, 5, 8});
  }
}

TEST(CodedGradients, LogicalWorkersAreOnesOfTheRunWhateverTheirNumber) {
  for (const std::int64_t count : {1, 7}) {
    expect_as_model({.codec = "topk:0.05", .logical_workers = count}, {1, 5});
  }
  expect_as_model({.codec = "threshold:300", .shards = 16, .logical_workers = 5}, {3});
}

TEST(CodedGradients, OptionsDoWhatTheModelDoes) {
  expect_as_model({.codec = "topk:0.05", .error_feedback = false}, {2});
  expect_as_model({.codec = "half", .error_feedback = false}, {2});
  expect_as_model({.codec = "topk:0.05", .scope = CodecScope::tensor}, {3});
  expect_as_model({.codec = "half", .clamp = 100}, {3});
  for (const auto transport : {Transport::sparse, Transport::dense}) {
    expect_as_model({.codec = "topk:0.2", .transport = transport}, {2});
    expect_as_model({.codec = "threshold:300", .transport = transport}, {2});
  }
}

TEST(CodedGradients, AGroupIsEncodedAsSoonAsItIsFull) {
  // Steps of the oracle in which some logical worker's last leaf writes whole groups.
  std::size_t alone = 0;
  run_thread_ranks(1, [&](const Job& job) {
    Workers all(Group(job), {.codec = "topk:0.05", .scope = CodecScope::tensor});
    const auto states = model_of({.codec = "topk:0.05", .scope = CodecScope::tensor});
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      all.step(step, states[static_cast<std::size_t>(step - 1)]);
      alone += all.made_early();
    }
  });
  // Of 4 logical workers × 8 parameters × 3 steps those that are written last: 5 of 8.
  EXPECT_GT(alone, 30u);
  // A logical worker of two ranks is encoded when both are there.
  run_thread_ranks(2, [](const Job& job) {
    Workers all(Group(job), {.codec = "topk:0.05", .logical_workers = 1});
    ASSERT_EQ(all.half_step(1, 1), "");
    EXPECT_EQ(all.made_early(), 0u);
    all.exchange().complete([] {});
    Group(job, "end").barrier();
  });
}

TEST(CodedGradients, AStepThatIsDroppedLeavesNoResidual) {
  const Case test{.codec = "topk:0.05"};
  const auto states = model_of(test);
  run_thread_ranks(3, [&](const Job& job) {
    Workers all(Group(job), test);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      ASSERT_EQ(all.half_step(step + 100, 1), "");
      all.exchange().fail("dropped by the test");
      all.step(step, states[static_cast<std::size_t>(step - 1)]);
    }
    Group(job, "end").barrier();
  });
}

TEST(CodedGradients, WhatCannotBeSentIsNamedByAll) {
  const std::vector<std::size_t> counts = {3, 5000, 4};
  const auto text_of_step = [&](float value, const char* codec, double clamp = 0) {
    std::string said;
    run_thread_ranks(3, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_of(counts), {.cuts = {0, 1, 2}, .coded = true});
      CodedGradients coded(exchange, {.compression = {.codec = codec_of(codec), .clamp = clamp},
                                      .logical_workers = logical_workers(3, 3),
                                      .shards = 3});
      exchange.open_shards(group.rank(), 1);
      exchange.begin_leaf(1);
      for (std::size_t p = 0; p < counts.size(); ++p) {
        Values values(counts[p], 1.0f);
        if (group.rank() == 1 && p == 1) values[4500] = value;
        exchange.write(p, values.data(), true);
      }
      exchange.end_leaf();
      exchange.arrive({});
      const auto [refusal, is_overflow] = coded.encode(1);
      EXPECT_EQ(is_overflow, !std::isfinite(value));
      EXPECT_THAT(refusal, HasSubstr("the gradient of \"p1\" in logical worker 1"));
      if (group.rank() == 2) said = refusal;
      exchange.fail("refused");
      group.barrier();
    });
    return said;
  };
  EXPECT_THAT(text_of_step(7e4f, "half"), HasSubstr("cannot be sent: 70000 is beyond the range"));
  EXPECT_THAT(text_of_step(std::nanf(""), "topk:0.1"), HasSubstr("is not finite"));
  EXPECT_THAT(text_of_step(INFINITY, "threshold:0.1"), HasSubstr("is not finite"));
  // A bound does not hide it.
  EXPECT_THAT(text_of_step(INFINITY, "half", 100), HasSubstr("is not finite"));
}

// ---- every worker a logical worker: DataParallel ----

TEST(CodedGradients, AStepOfDataParallelGivesTheSumOfWhatWasSent) {
  const std::vector<std::size_t> kCounts = {1, 65, 4097, 0};
  for (const auto divisor : {Divisor::weights, Divisor::contributors, Divisor::none}) {
    for (const int workers : {1, 2, 5}) {
      run_thread_ranks(workers, [&](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of(kCounts), {.divisor = divisor, .coded = true});
        CodedGradients coded(
            exchange, {.compression = {.codec = top_k_codec(0.1), .scope = CodecScope::tensor},
                       .divisor = divisor});
        std::vector<std::vector<Values>> residuals(static_cast<std::size_t>(workers));
        for (auto& own : residuals) {
          for (const auto count : kCounts) own.emplace_back(count);
        }
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          exchange.open_single(weight_of(group.rank()));
          const auto mine = random_leaf(kCounts, step, group.rank(), 3);
          for (std::size_t p = 0; p < kCounts.size(); ++p) {
            if (!mine[p]) continue;
            exchange.write(p, mine[p]->data(), true);
            coded.wrote(static_cast<std::uint32_t>(p), 1);
          }
          const auto touched = coded.finish({}).touched;
          for (std::size_t p = 0; p < kCounts.size(); ++p) {
            std::vector<std::optional<Values>> sent(static_cast<std::size_t>(workers));
            double all = 0;
            double contributed = 0;
            for (int r = 0; r < workers; ++r) {
              all += weight_of(r);
              if (random_leaf(kCounts, step, r, 3)[p]) contributed += weight_of(r);
            }
            const double total = divisor == Divisor::contributors ? contributed : all;
            for (std::size_t r = 0; r < sent.size(); ++r) {
              const auto rank = static_cast<std::int64_t>(r);
              const auto leaf = random_leaf(kCounts, step, rank, 3)[p];
              if (!leaf || leaf->empty()) continue;
              const auto w = static_cast<float>(weight_of(rank));
              auto x = *leaf;
              for (std::size_t i = 0; i < x.size(); ++i) {
                x[i] = x[i] * w / w + residuals[r][p][i];
              }
              sent[r] = sent_by("topk:0.1", x);
              for (std::size_t i = 0; i < x.size(); ++i) {
                residuals[r][p][i] = x[i] - (*sent[r])[i];
                (*sent[r])[i] *= static_cast<float>(weight_of(rank) / total);
              }
            }
            auto expected = fold_range(sent, 0, sent.size());
            if (!expected) continue;
            ASSERT_TRUE(touched[p]);
            if (divisor == Divisor::none) {
              for (auto& value : *expected) value *= static_cast<float>(all);
            }
            EXPECT_TRUE(same_bytes(reinterpret_cast<const float*>(exchange.result(p)), *expected))
                << workers << " workers, step " << step << ", parameter " << p << ", divisor "
                << static_cast<int>(divisor);
          }
        }
        group.barrier();
      });
    }
  }
}

TEST(CodedGradients, TrafficIsWhatTheFormulaSays) {
  const std::vector<std::size_t> counts = {600, 400, 5000};
  run_thread_ranks(2, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of(counts), {.coded = true});
    CodedGradients coded(exchange, {.compression = {.codec = top_k_codec(0.01), .fusion = 1000}});
    for (int step = 0; step < 3; ++step) {
      exchange.open_single(1);
      for (std::size_t p = 0; p < counts.size(); ++p) {
        // Disjoint on the two workers: the sum has the entries of both.
        Values values(counts[p], 0.001f);
        for (std::size_t i = 0; i < counts[p] / 100; ++i) {
          values[2 * i + static_cast<std::size_t>(group.rank())] = 1.0f + static_cast<float>(i);
        }
        exchange.write(p, values.data(), true);
      }
      const auto& outcome = coded.finish({});
      auto report = outcome.report;
      coded.fill_report(report);
      EXPECT_EQ(report.bytes, 2u * 8 + 8 * 10 + 8 * 50);
      EXPECT_EQ(report.bytes_dense, 4u * 6000);
    }
    const auto traffic = coded.traffic();
    EXPECT_EQ(traffic.steps, 3);
    EXPECT_EQ(traffic.collectives, 3);
    ASSERT_EQ(traffic.all_steps.size(), 2u);
    EXPECT_EQ(traffic.all_steps[1].parameters, "p0 … p1 (2)");
    const auto& large = traffic.last_step[0];
    EXPECT_EQ(large.parameters, "p2");
    EXPECT_EQ(large.messages, 2);
    EXPECT_EQ(large.values, 100);
    EXPECT_EQ(large.dense_messages, 0);
    EXPECT_DOUBLE_EQ(large.density(), 0.01);
    // Each hands in 8 + 8·50 and gets back 8 + 8·100.
    EXPECT_EQ(large.bytes, 2u * (8 + 8 * 50) + 2 * (8 + 8 * 100));
    EXPECT_EQ(large.bytes_dense, 2u * 4 * 5000 + 2 * 4 * 5000);
    EXPECT_EQ(traffic.all_steps[0].bytes, 3 * large.bytes);
    EXPECT_GT(large.residual_norm, 0);
    EXPECT_THAT(traffic.table(), HasSubstr("p0 … p1 (2)"));
    EXPECT_THAT(traffic.table(), HasSubstr("3 steps, 3 collectives"));
    group.barrier();
  });
}

// A worker of the run before last asked for room for all logical workers' nodes, not for its own.
TEST(CodedGradients, MemoryIsAskedForTheNodesOfTheOwnRangeOnly) {
  ThreadOptions options;
  // Four workers of two shards hold two copies of 4 MB each at most.
  options.memory_bounds = std::vector<MemoryBound>{{"the test", 48 << 20, 48 << 20}};
  run_thread_ranks(
      4,
      [](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of({1 << 20}),
                              {.cuts = {0, 1, 2, 3, 4, 5, 6, 7}, .coded = true});
        exchange.open_shards(2 * group.rank(), 2);
        exchange.fail("enough");
        group.barrier();
      },
      options);
}

TEST(CodedGradients, OnlyGradientsFoldedInFloat32AreTaken) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    std::vector<TensorSpec> specs = {{"wide", {4}, {1}, 4, DType::float64}};
    StepExchange exchange(group, Plan(specs, {}), {.coded = true});
    try {
      CodedGradients coded(exchange, {.compression = {.codec = half_codec()}});
      FAIL();
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), HasSubstr("parameter \"wide\" is float64"));
    }
  });
}

}  // namespace
}  // namespace tutti::test
