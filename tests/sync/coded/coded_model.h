#pragma once

// A scalar model of steps with a codec, and workers whose steps are compared with it, bit for bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "codec/codec_model.h"
#include "support/thread_ranks.h"
#include "sync/coded/coded_gradients.h"
#include "sync/gradient_oracle.h"
#include "sync/nodes/logical_workers.h"
#include "sync/plan/assignment.h"
#include "sync/whole_step.h"
#include "tutti/error.h"

namespace tutti::test::coded {

/// Around tiles and vectors; two larger than the fusion limit of the tests.
inline const std::vector<std::size_t> kCounts = {1, 63, 65, 4095, 4097, 9'000, 0, 17};
inline constexpr std::int64_t kFusion = 4096;
inline constexpr std::int64_t kSteps = 3;

inline double weight_of(std::int64_t shard) { return static_cast<double>(1 + (shard * 5) % 3); }

struct Case {
  std::string codec;
  std::int64_t shards = 7;
  std::int64_t logical_workers = 4;
  bool error_feedback = true;
  CodecScope scope = CodecScope::bucket;
  double clamp = 0;
  std::optional<MomentumCorrection> momentum_correction = {};
  MessageFormat message_format = MessageFormat::by_size;
  std::string text() const {
    return codec + ", " + std::to_string(shards) + " shards, " + std::to_string(logical_workers) +
           " logical workers, clamp " + std::to_string(clamp) +
           (momentum_correction ? ", momentum corrected" : "");
  }
  Compression compression() const {
    return {.codec = codec_of(codec),
            .error_feedback = error_feedback,
            .scope = scope,
            .fusion = kFusion,
            .clamp = clamp,
            .momentum_correction = momentum_correction,
            .message_format = message_format};
  }
};

/// What weights are decayed from.
inline std::vector<Values> parameter_values() {
  std::vector<Values> all;
  for (const auto count : kCounts) {
    all.emplace_back();
    for (std::size_t i = 0; i < count; ++i) {
      all.back().push_back(300.0f * static_cast<float>(static_cast<int>(i % 7) - 3));
    }
  }
  return all;
}

/// What is left of every step: the gradients of all parameters, and what is kept.
struct State {
  std::vector<std::optional<Values>> gradients;
  std::vector<std::vector<Values>> residuals;   ///< by logical worker and parameter
  std::vector<std::vector<Values>> velocities;  ///< the same
};

inline Buckets buckets_of(const Case& test) {
  std::vector<std::int64_t> counts(kCounts.begin(), kCounts.end());
  std::vector<std::uint32_t> order;
  for (std::uint32_t p = 0; p < counts.size(); ++p) order.push_back(p);
  if (test.scope == CodecScope::bucket) return fuse(order, counts, kFusion, kFusion);
  Buckets buckets;
  for (const auto p : order) buckets.push_back({p});
  return buckets;
}

/// Lin et al. 2018, algorithm 4, of one element: decay, then correction, then (elsewhere)
/// selection.
inline float with_momentum(const MomentumCorrection& numbers, float gradient, float weight,
                           float& velocity) {
  const auto momentum = static_cast<float>(numbers.momentum);
  const float decay = static_cast<float>(numbers.weight_decay) * weight;
  const float x = numbers.weight_decay > 0 ? gradient + decay : gradient;
  const float slowed = momentum * velocity;
  velocity = slowed + x;
  const float ahead = momentum * velocity;
  return numbers.nesterov ? x + ahead : velocity;
}

/// By the codec's name in that step: "topk:F:W" warms up for W steps, in four quarters.
inline std::vector<float> sent_in(std::int64_t step, const std::string& codec,
                                  const Values& values) {
  const auto last = codec.rfind(':');
  if (!codec.starts_with("topk:") || last == 4) return sent_by(codec, values);
  const auto steps = std::stoll(codec.substr(last + 1));
  double fraction = std::stod(codec.substr(5));
  if (step <= steps) {
    const double first[] = {0.25, 0.0625, 0.015625, 0.00390625};
    fraction = std::max(fraction, first[4 * (step - 1) / steps]);
  }
  return largest_of(values, fraction);
}

/// Returns what a codec sends of a bucket's touched parameters, which lie one after the other in
/// `all`: blocks of int8 are a parameter's own.
inline Values sent_of_bucket(std::int64_t step, const std::string& codec, const Values& all,
                             const std::vector<std::uint32_t>& touched) {
  if (codec != "int8") return sent_in(step, codec, all);
  Values said;
  auto at = all.begin();
  for (const auto p : touched) {
    const auto end = at + static_cast<std::ptrdiff_t>(kCounts[p]);
    const auto own = as_int8({at, end});
    said.insert(said.end(), own.begin(), own.end());
    at = end;
  }
  return said;
}

/// One step of the model; `state` is that of the step before.
inline void step_of_model(const Case& test, std::int64_t step, State& state) {
  const auto nodes = logical_workers(test.shards, test.logical_workers);
  const auto weights_of = parameter_values();
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
    for (const auto& bucket : buckets_of(test)) {
      Values all;
      std::vector<std::uint32_t> touched;
      for (const auto p : bucket) {
        auto x = reduced(mine, own, p, weight);
        if (!x) continue;
        touched.push_back(p);
        for (std::size_t i = 0; i < x->size(); ++i) {
          auto& value = (*x)[i];
          if (test.clamp > 0) {
            const auto bound = static_cast<float>(test.clamp);
            value = std::min(std::max(value, -bound), bound);
          }
          if (test.momentum_correction) {
            value = with_momentum(*test.momentum_correction, value, weights_of[p][i],
                                  state.velocities[l][p][i]);
          }
          if (test.error_feedback) value += state.residuals[l][p][i];
        }
        all.insert(all.end(), x->begin(), x->end());
      }
      if (all.empty()) continue;
      const auto said = sent_of_bucket(step, test.codec, all, touched);
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
          const bool is_sent = std::bit_cast<std::uint32_t>(said[at]) != 0x80000000u;
          if (is_sent) state.velocities[l][p][i] = 0;
          values[i] *= static_cast<float>(weight / total);
        }
        sent[p][first] = std::move(values);
      }
    }
  }
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    state.gradients[p] = fold_range(sent[p], 0, sent[p].size());
    if (!state.gradients[p]) continue;
    if (test.codec == "int8") state.gradients[p] = as_int8(*state.gradients[p]);
    for (auto& value : *state.gradients[p]) {
      if (test.codec == "half") value = as_half(value);
      if (test.codec == "bfloat16") value = as_bfloat16(value);
    }
  }
}

inline std::vector<State> model_of(const Case& test) {
  State state;
  state.gradients.resize(kCounts.size());
  for (std::int64_t l = 0; l < test.logical_workers; ++l) {
    state.residuals.emplace_back();
    for (const auto count : kCounts) state.residuals.back().emplace_back(count);
  }
  state.velocities = state.residuals;
  std::vector<State> states;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    step_of_model(test, step, state);
    states.push_back(state);
  }
  return states;
}

inline bool same_bytes(const float* a, const Values& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

class Workers {
 public:
  Workers(const Group& group, const Case& test)
      : test_(test),
        exchange_(group, plan_of(kCounts), options_of(group, test)),
        coded_(exchange_,
               {.compression = test.compression(),
                .logical_workers = logical_workers(test.shards, test.logical_workers),
                .shards = test.shards,
                .name = "model",
                .values = [this](std::uint32_t p) -> ParameterValues {
                  return {reinterpret_cast<const std::byte*>(values_[p].data()), DType::float32};
                }}),
        mine_(assign_shards(test.shards, group.size())[static_cast<std::size_t>(group.rank())]) {}

  /// Up to the messages.
  std::string half_step(std::int64_t step, double loss_scale) {
    exchange_.open_shards(mine_.begin, mine_.count());
    for (auto s = mine_.begin; s < mine_.end; ++s) {
      exchange_.leaves().begin_leaf(weight_of(s));
      auto leaf = random_leaf(kCounts, step, s, 3);
      for (std::size_t p = 0; p < leaf.size(); ++p) {
        if (!leaf[p]) continue;
        for (auto& value : *leaf[p]) value *= static_cast<float>(loss_scale);
        exchange_.leaves().write(p, leaf[p]->data(), true);
        coded_.wrote(static_cast<std::uint32_t>(p), loss_scale);
      }
      exchange_.leaves().end_leaf();
    }
    made_early_ = coded_.made_early();
    exchange_.arrive({});
    coded_.begin(loss_scale);
    return coded_.prepare().text;
  }

  void step(std::int64_t number, const State& expected) {
    // A power of two goes in and out without a trace.
    ASSERT_EQ(half_step(number, number % 2 == 0 ? 8 : 1), "");
    for (std::uint32_t p = 0; p < kCounts.size(); ++p) {
      if (!expected.gradients[p]) continue;
      const auto gradient = read_all(coded_, p, kCounts[p]);
      EXPECT_TRUE(same_bytes(gradient.data(), *expected.gradients[p]))
          << test_.text() << ": step " << number << ", parameter " << p << ", "
          << exchange_.group().size() << " workers";
    }
    auto report = exchange_.complete([this] { coded_.note(); }).report;
    coded_.commit(report);
    if (!test_.error_feedback) return;
    coded_.bring_kept();
    for (std::size_t l = 0; l < expected.residuals.size(); ++l) {
      for (std::size_t p = 0; p < kCounts.size(); ++p) {
        const auto expect_kept = [&](Kept which, const Values& values, const char* name) {
          EXPECT_TRUE(same_bytes(coded_.board().kept(which, l, p), values))
              << test_.text() << ": " << name << " of " << l << ", step " << number
              << ", parameter " << p << ", " << exchange_.group().size() << " workers";
        };
        expect_kept(Kept::residual, expected.residuals[l][p], "residual");
        if (test_.momentum_correction) {
          expect_kept(Kept::velocity, expected.velocities[l][p], "velocity");
        }
      }
    }
  }

  StepExchange& exchange() { return exchange_; }
  CodedGradients& coded() { return coded_; }
  /// Before the last step was published.
  std::size_t made_early() const { return made_early_; }

 private:
  static ExchangeOptions options_of(const Group& group, const Case& test) {
    const auto logical = logical_workers(test.shards, test.logical_workers);
    const auto carried = assign_shards(test.shards, group.size());
    std::vector<std::int64_t> cuts;
    for (const auto& node : logical) cuts.push_back(node.begin);
    std::vector<int> hosts;
    for (int r = 0; r < group.size(); ++r) hosts.push_back(group.state()->host_of(r));
    return {.name = "model",
            .node_boundaries = cuts,
            .coded = true,
            .sync_buffers = false,
            .stays = [logical, is_on_one = on_one_host(logical, carried, hosts), carried](
                         const PlanEntry&, int worker, std::int64_t leaf) {
              const auto shard = carried[static_cast<std::size_t>(worker)].begin + leaf;
              std::size_t l = 0;
              while (shard >= logical[l].end) ++l;
              return static_cast<bool>(is_on_one[l]);
            }};
  }

  Case test_;
  std::vector<Values> values_ = parameter_values();
  StepExchange exchange_;
  CodedGradients coded_;
  ShardRange mine_;
  std::size_t made_early_ = 0;
};

inline void expect_as_model(const Case& test, const std::vector<int>& sizes,
                            const ThreadOptions& options = {}) {
  const auto states = model_of(test);
  for (const int workers : sizes) {
    run_thread_ranks(
        workers,
        [&](const Job& job) {
          Workers all(Group(job), test);
          for (std::int64_t step = 1; step <= kSteps; ++step) {
            all.step(step, states[static_cast<std::size_t>(step - 1)]);
          }
          Group(job, "end").barrier();
        },
        options);
  }
}

/// A step of other gradients is dropped before each one that counts.
inline void expect_no_trace_of_dropped_steps(const Case& test, const ThreadOptions& options = {}) {
  const auto states = model_of(test);
  run_thread_ranks(
      3,
      [&](const Job& job) {
        Workers all(Group(job), test);
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          ASSERT_EQ(all.half_step(step + 100, 1), "");
          all.exchange().protocol().fail("dropped by the test");
          all.step(step, states[static_cast<std::size_t>(step - 1)]);
        }
        Group(job, "end").barrier();
      },
      options);
}

}  // namespace tutti::test::coded
