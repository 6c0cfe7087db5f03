// Codecs in the step protocol, with ranks as threads, against a scalar model: what is sent, what is
// left, and the sum, bit for bit, on any number of workers.

#include <fmt/format.h>

#include "sync/coded/coded_model.h"
#include "sync/whole_step.h"

namespace tutti::test::coded {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsNan;
using ::testing::Not;
using ::testing::ThrowsMessage;

// promise: codec.h#Codec, codec.h#error_feedback, codec.h#round_sum
TEST(CodedGradients, AnyNumberOfWorkersGivesWhatTheModelGives) {
  for (const auto* codec : {"half", "bfloat16", "int8", "threshold:300", "topk:0.05"}) {
    expect_as_model({.codec = codec}, {1, 2, 3, 5, 8});
  }
}

// promise: codec.h#error_feedback
TEST(CodedGradients, LogicalWorkersAreOnesOfTheRunWhateverTheirNumber) {
  for (const std::int64_t count : {1, 7}) {
    expect_as_model({.codec = "topk:0.05", .logical_workers = count}, {1, 5});
  }
  expect_as_model({.codec = "threshold:300", .shards = 16, .logical_workers = 5}, {3});
  expect_as_model({.codec = "int8", .shards = 16, .logical_workers = 5}, {1, 3});
}

// promise: codec.h#CodecScope, codec.h#MessageFormat, codec.h#clamp
TEST(CodedGradients, OptionsDoWhatTheModelDoes) {
  expect_as_model({.codec = "topk:0.05", .error_feedback = false}, {2});
  expect_as_model({.codec = "topk:0.001:3"}, {1, 3});  // warms up; some buckets are encoded early
  expect_as_model({.codec = "half", .error_feedback = false}, {2});
  expect_as_model({.codec = "topk:0.05", .scope = CodecScope::tensor}, {3});
  expect_as_model({.codec = "half", .clamp = 100}, {3});
  expect_as_model({.codec = "int8", .error_feedback = false}, {2});
  expect_as_model({.codec = "int8", .scope = CodecScope::tensor, .clamp = 100}, {3});
  for (const auto message_format : {MessageFormat::sparse, MessageFormat::dense}) {
    expect_as_model({.codec = "topk:0.2", .message_format = message_format}, {2});
    expect_as_model({.codec = "threshold:300", .message_format = message_format}, {2});
  }
}

TEST(CodedGradients, ABucketIsEncodedAsSoonAsItIsFull) {
  // Steps of the oracle in which some logical worker's last leaf writes whole buckets.
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
  expect_no_trace_of_dropped_steps({.codec = "topk:0.05"});
  expect_no_trace_of_dropped_steps({.codec = "int8"});
}

/// What all workers are told of a step in which rank 1 writes `bad` (parameter, element, value).
std::string refusal_of(const CodecPointer& codec,
                       const std::vector<std::tuple<std::size_t, std::size_t, float>>& bad,
                       double clamp = 0) {
  const std::vector<std::size_t> counts = {3, 5000, 4};
  std::string said;
  run_thread_ranks(3, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of(counts), {.node_boundaries = {0, 1, 2}, .coded = true});
    CodedGradients coded(exchange, {.compression = {.codec = codec, .clamp = clamp},
                                    .logical_workers = logical_workers(3, 3),
                                    .shards = 3});
    exchange.open_shards(group.rank(), 1);
    exchange.leaves().begin_leaf(1);
    bool is_infinite = false;
    for (std::size_t p = 0; p < counts.size(); ++p) {
      Values values(counts[p], 1.0f);
      for (const auto& [parameter, element, value] : bad) {
        if (group.rank() == 1 && p == parameter) values[element] = value;
        is_infinite = is_infinite || !std::isfinite(value);
      }
      exchange.leaves().write(p, values.data(), true);
    }
    exchange.leaves().end_leaf();
    exchange.arrive({});
    coded.begin(1);
    const auto [refusal, is_overflow] = coded.prepare();
    EXPECT_EQ(is_overflow, is_infinite);
    if (group.rank() == 2) said = refusal;
    exchange.protocol().fail("refused");
    group.barrier();
  });
  return said;
}

// promise: codec.h#encode
TEST(CodedGradients, WhatCannotBeSentIsNamedByAll) {
  const auto text_of_step = [](float value, const char* codec, double clamp = 0) {
    const auto said = refusal_of(codec_of(codec), {{1, 4500, value}}, clamp);
    EXPECT_THAT(said, HasSubstr("the gradient of \"p1\" in logical worker 1"));
    return said;
  };
  EXPECT_THAT(text_of_step(7e4f, "half"), HasSubstr("cannot be sent: 70000 is beyond the range"));
  EXPECT_THAT(text_of_step(std::nanf(""), "topk:0.1"), HasSubstr("is not finite"));
  EXPECT_THAT(text_of_step(INFINITY, "threshold:0.1"), HasSubstr("is not finite"));
  EXPECT_THAT(text_of_step(-INFINITY, "half"), HasSubstr("is not finite"));
  EXPECT_THAT(text_of_step(std::nanf(""), "int8"), HasSubstr("is not finite"));
  EXPECT_THAT(text_of_step(-INFINITY, "int8"), HasSubstr("is not finite"));
  // A bound does not hide it.
  EXPECT_THAT(text_of_step(INFINITY, "half", 100), HasSubstr("is not finite"));
}

TEST(CodedGradients, WhatIsNotFiniteComesBeforeWhatCannotBeSentWhereverItIs) {
  // A dynamic loss scale shrinks for the one and not for the other.
  EXPECT_THAT(refusal_of(half_codec(), {{0, 1, 7e4f}, {1, 4999, INFINITY}}),
              HasSubstr("\"p1\" in logical worker 1 is not finite"));
  EXPECT_THAT(refusal_of(half_codec(), {{1, 4999, 8e4f}, {0, 1, 7e4f}}),
              HasSubstr("\"p0\" in logical worker 1 cannot be sent: 70000"));
}

/// Half, told as a codec that makes its messages as a whole, or with a size that is not so.
class Retold : public Codec {
 public:
  explicit Retold(std::size_t bytes_per_value) : bytes_per_value_(bytes_per_value) {}
  std::string name() const override { return "retold"; }
  std::size_t tile_bytes(std::int64_t count) const override {
    return static_cast<std::size_t>(count) * bytes_per_value_;
  }
  std::size_t bound(std::int64_t count, const EncodeContext& context) const override {
    return half_->bound(count, context) * 2;
  }
  Encoded encode(std::span<const float> values, const EncodeContext& context,
                 std::byte* message) const override {
    return half_->encode(values, context, message);
  }
  void decode(std::span<const std::byte> message, const EncodeContext& context, std::int64_t begin,
              std::span<float> to) const override {
    half_->decode(message, context, begin, to);
  }

 private:
  CodecPointer half_ = half_codec();
  std::size_t bytes_per_value_;
};

class Small final : public Retold {
 public:
  Small() : Retold(0) {}
  std::int64_t max_values() const override { return 100; }
};

TEST(CodedGradients, ABucketBeyondWhatTheCodecTakesIsUnsupported) {
  run_thread_ranks(1, [](const Job& job) {
    StepExchange exchange(Group(job), plan_of({101}), {.coded = true});
    try {
      const CodedGradients coded(exchange, {.compression = {.codec = std::make_shared<Small>()}});
      ADD_FAILURE() << "101 values were taken";
    } catch (const Unsupported& error) {
      EXPECT_STREQ(error.what(),
                   "codec retold: a bucket of 101 elements (\"p0\" and what follows); it takes at "
                   "most 100");
    }
  });
}

// promise: codec.h#tile_bytes
TEST(CodedGradients, AMessageMadeInTilesIsTheOneMadeAsAWhole) {
  const std::vector<std::size_t> counts = {65, 4097, 1, 0, 8191};
  run_thread_ranks(2, [&](const Job& job) {
    const Group group(job);
    for (const bool error_feedback : {true, false}) {
      const auto make = [&](const CodecPointer& codec) {
        StepExchange exchange(group, plan_of(counts), {.node_boundaries = {0, 2}, .coded = true});
        CodedGradients coded(exchange,
                             {.compression = {.codec = codec, .error_feedback = error_feedback},
                              .logical_workers = logical_workers(4, 2),
                              .shards = 4});
        std::vector<float> sums;
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          exchange.open_shards(2 * group.rank(), 2);
          for (int leaf = 0; leaf < 2; ++leaf) {
            const auto mine = random_leaf(counts, step, 2 * group.rank() + leaf, 3);
            exchange.leaves().begin_leaf(1);
            for (std::size_t p = 0; p < counts.size(); ++p) {
              if (!mine[p]) continue;
              exchange.leaves().write(p, mine[p]->data(), true);
              coded.wrote(static_cast<std::uint32_t>(p), 1);
            }
            exchange.leaves().end_leaf();
          }
          exchange.arrive({});
          coded.begin(1);
          EXPECT_EQ(coded.prepare().text, "");
          for (std::uint32_t p = 0; p < counts.size(); ++p) {
            const auto sum = read_all(coded, p, counts[p]);
            sums.insert(sums.end(), sum.begin(), sum.end());
          }
          auto report = exchange.complete([&] { coded.note(); }).report;
          coded.commit(report);
        }
        return sums;
      };
      const auto tiles = make(std::make_shared<Retold>(2));
      const auto whole = make(std::make_shared<Retold>(0));
      ASSERT_EQ(tiles.size(), whole.size());
      EXPECT_EQ(std::memcmp(tiles.data(), whole.data(), tiles.size() * sizeof(float)), 0);
    }
  });
}

// promise: codec.h#tile_bytes
TEST(CodedGradients, ACodecWhoseValuesHaveAnotherSizeThanItSaysIsRefused) {
  for (const std::size_t bytes : {1, 4}) {
    const auto step = [&] { refusal_of(std::make_shared<Retold>(bytes), {}); };
    EXPECT_THAT(step, ThrowsMessage<InvalidArgument>(HasSubstr(fmt::format(
                          "codec retold: 3 values have 6 bytes, not the {} it says", 3 * bytes))));
  }
}

// ---- every worker a logical worker: DataParallel ----

// promise: data_parallel.h#no_compression
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
          exchange.open_one_backward(weight_of(group.rank()));
          const auto mine = random_leaf(kCounts, step, group.rank(), 3);
          for (std::size_t p = 0; p < kCounts.size(); ++p) {
            if (!mine[p]) continue;
            exchange.leaves().write(p, mine[p]->data(), true);
            coded.wrote(static_cast<std::uint32_t>(p), 1);
          }
          const auto touched = finish(exchange, coded).touched;
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
            EXPECT_TRUE(
                same_bytes(reinterpret_cast<const float*>(exchange.nodes().result(p)), *expected))
                << workers << " workers, step " << step << ", parameter " << p << ", divisor "
                << static_cast<int>(divisor);
          }
        }
        group.barrier();
      });
    }
  }
}

TEST(CodedGradients, WhatCannotBeSentIsRefusedAlikeOnAllWorkers) {
  const std::vector<std::size_t> counts = {3, 5000};
  for (const float bad : {7e4F, std::nanf("")}) {
    run_thread_ranks(2, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_of(counts), {.coded = true});
      CodedGradients coded(exchange, {.compression = {.codec = half_codec()}});
      const auto refusal_with = [&](float value) {
        exchange.open_one_backward(1);
        for (std::size_t p = 0; p < counts.size(); ++p) {
          Values values(counts[p], 1.0F);
          if (group.rank() == 1) values[1] = value;
          exchange.leaves().write(p, values.data(), true);
        }
        exchange.arrive({});
        coded.begin(1);
        return coded.prepare().text;
      };
      EXPECT_EQ(refusal_with(2), "");
      EXPECT_THAT(read_all(coded, 0, counts[0]), Each(Not(IsNan())));
      exchange.complete([] {});
      EXPECT_THAT(refusal_with(bad), HasSubstr("in logical worker 1"));
      EXPECT_THAT(read_all(coded, 0, counts[0]), Each(IsNan())) << "not those of the step before";
      exchange.protocol().fail("refused");
      group.barrier();
    });
  }
}

TEST(CodedGradients, PlacedGradientsAreSentAsTheyAreBesidesTheMessages) {
  const std::vector<std::size_t> counts = {600, 400};
  const auto sent = [&](int owner) {
    std::size_t bytes = 0;
    run_thread_ranks(2, [&](const Job& job) {
      auto specs = specs_of(counts);
      specs[1].owner = owner;
      StepExchange exchange(Group(job), Plan(std::move(specs), {}), {.coded = true});
      CodedGradients coded(exchange, {.compression = {.codec = top_k_codec(0.01)}});
      exchange.open_one_backward(1);
      for (std::size_t p = 0; p < counts.size(); ++p) {
        Values values(counts[p], 0.001F);
        values[7] = 1;
        exchange.leaves().write(p, values.data(), true);
      }
      const auto report = finish(exchange, coded).report;
      if (job.rank() == 0) bytes = report.max_sent_bytes;
    });
    return bytes;
  };
  EXPECT_EQ(sent(-1), 8u + 8 * 10);
  EXPECT_EQ(sent(1), 8u + 8 * 6 + 4 * 400);
}

// promise: step_report.h#dense_bytes, traffic.h#BucketTraffic, traffic.h#collectives
TEST(CodedGradients, TrafficIsWhatTheFormulaSays) {
  const std::vector<std::size_t> counts = {600, 400, 5000};
  run_thread_ranks(2, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of(counts), {.coded = true});
    CodedGradients coded(exchange, {.compression = {.codec = top_k_codec(0.01), .fusion = 1000}});
    for (int step = 0; step < 3; ++step) {
      exchange.open_one_backward(1);
      for (std::size_t p = 0; p < counts.size(); ++p) {
        // Disjoint on the two workers: the sum has the entries of both.
        Values values(counts[p], 0.001f);
        for (std::size_t i = 0; i < counts[p] / 100; ++i) {
          values[2 * i + static_cast<std::size_t>(group.rank())] = 1.0f + static_cast<float>(i);
        }
        exchange.leaves().write(p, values.data(), true);
      }
      const auto outcome = finish(exchange, coded);
      const auto& report = outcome.report;
      EXPECT_EQ(report.max_sent_bytes, 2u * 8 + 8 * 10 + 8 * 50);
      EXPECT_EQ(report.dense_bytes, 4u * 6000);
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

// promise: codec.h#int8_codec, codec.h#sum_bytes, codec.h#tile_bytes
TEST(CodedGradients, BlocksOfInt8AreThoseOfEachParameterInTheMessagesAndInTheSum) {
  const std::vector<std::size_t> counts = {600, 400, 5000};
  run_thread_ranks(2, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of(counts), {.coded = true});
    CodedGradients coded(exchange, {.compression = {.codec = int8_codec(), .fusion = 1000}});
    exchange.open_one_backward(1);
    for (std::size_t p = 0; p < counts.size(); ++p) {
      if (p == 1 && group.rank() == 1) continue;  // of the sum it is a part all the same
      const Values values(counts[p], 0.001f);
      exchange.leaves().write(p, values.data(), true);
    }
    const auto outcome = finish(exchange, coded);
    constexpr std::size_t kLarge = 5000 + 4 * 20;
    constexpr std::size_t kSmall = 600 + 4 * 3;
    constexpr std::size_t kOnce = 400 + 4 * 2;
    EXPECT_EQ(outcome.report.max_sent_bytes, kLarge + kSmall + kOnce);
    const auto traffic = coded.traffic();
    ASSERT_EQ(traffic.last_step.size(), 2u);
    EXPECT_EQ(traffic.last_step[0].bytes, 2 * kLarge + 2 * kLarge);
    EXPECT_EQ(traffic.last_step[1].bytes, 2 * kSmall + kOnce + 2 * (kSmall + kOnce));
    EXPECT_GE(static_cast<double>(traffic.last_step[0].bytes_dense),
              3.9 * static_cast<double>(traffic.last_step[0].bytes));
    group.barrier();
  });
}

// What is kept is there twice, for the step that holds and for the next one.
// promise: codec.h#error_feedback, codec.h#momentum_correction
TEST(CodedGradients, MemoryOfWhatIsKeptIsTwiceTheParametersForEach) {
  run_thread_ranks(1, [](const Job& job) {
    const std::vector<std::size_t> counts = {6400, 64, 1280};
    const auto bytes_of = [&](const Compression& compression) {
      StepExchange exchange(Group(job), plan_of(counts), {.coded = true});
      const CodedGradients coded(exchange, {.compression = compression});
      return coded.board().bytes_per_logical_worker();
    };
    constexpr std::size_t kParameters = (6400 + 64 + 1280) * sizeof(float);
    const auto without = bytes_of({.codec = top_k_codec(0.01), .error_feedback = false});
    EXPECT_EQ(bytes_of({.codec = top_k_codec(0.01)}) - without, 2 * kParameters);
    EXPECT_EQ(bytes_of({.codec = top_k_codec(0.01), .momentum_correction = MomentumCorrection()}) -
                  without,
              4 * kParameters);
  });
}

// A worker of the run before last asked for room for all logical workers' nodes, not for its own.
TEST(CodedGradients, MemoryIsAskedForTheNodesOfTheOwnRangeOnly) {
  ThreadOptions options;
  // Four workers of two shards hold two copies of 4 MB each at most.
  options.memory_bounds = [] { return std::vector<MemoryBound>{{"the test", 48 << 20, 48 << 20}}; };
  run_thread_ranks(
      4,
      [](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of({1 << 20}),
                              {.node_boundaries = {0, 1, 2, 3, 4, 5, 6, 7}, .coded = true});
        exchange.open_shards(2 * group.rank(), 2);
        exchange.protocol().fail("enough");
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
}  // namespace tutti::test::coded
