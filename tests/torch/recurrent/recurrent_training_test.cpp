// Recurrent nets in chunks of time: their memory, and their gradients in a Trainer and in a
// DataParallel.

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "torch/recompute/memory_meter.h"
#include "torch/recurrent/recurrent_cases.h"

namespace tutti::test::recurrent_training {
namespace {

constexpr std::int64_t kBatch = 8;
constexpr std::int64_t kWidth = 32;

/// Blocks of libtorch's allocator that this thread, and its backwards, have asked for.
class AllocationCounter {
 public:
  AllocationCounter() : report_(std::make_shared<Report>()), guard_(kKind, report_) {}
  std::int64_t count() const { return report_->count; }

 private:
  struct Report final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*block*/, std::int64_t bytes, std::size_t /*allocated*/,
                           std::size_t /*reserved*/, c10::Device /*device*/) override {
      if (bytes > 0) ++count;
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t count = 0;
  };
  static constexpr const auto& kKind = c10::DebugInfoKind::PROFILER_STATE;

  std::shared_ptr<Report> report_;
  c10::DebugInfoGuard guard_;
};

struct Cost {
  std::int64_t peak;         ///< bytes
  std::int64_t allocations;  ///< of forward
  std::int64_t in_backward;
};

/// Of a step's forward and backward beyond input, gradient of the result, and parameters with their
/// gradients.
template <class Module>
Cost cost_of(Module net, std::int64_t steps, const ChunkOptions& options, bool plain = false) {
  at::set_num_threads(1);
  const auto x = torch::randn({steps, kBatch, kWidth});
  const auto directions = net->options.bidirectional() ? 2 : 1;
  const auto gradient = torch::randn({steps, kBatch, directions * kWidth});
  for (auto& parameter : net->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  Cost cost{};
  {
    MemoryMeter meter;
    const auto y =
        plain ? std::get<0>(net->forward(x)) : std::get<0>(run_in_chunks(net, x, {}, options));
    y.backward(gradient);
    cost.peak = meter.peak();
  }
  if (plain) return cost;
  const AllocationCounter counter;
  const auto y = std::get<0>(run_in_chunks(net, x, {}, options));
  cost.allocations = counter.count();
  y.backward(gradient);
  cost.in_backward = counter.count() - cost.allocations;
  return cost;
}

template <class Module>
class RecurrentMemory : public ::testing::Test {
 public:
  static constexpr bool kLstm = std::is_same_v<Module, torch::nn::LSTM>;
  static Module net(std::int64_t layers = 1, bool bidirectional = false, double dropout = 0) {
    using Options = std::conditional_t<kLstm, torch::nn::LSTMOptions, torch::nn::GRUOptions>;
    return Module(
        Options(kWidth, kWidth).num_layers(layers).bidirectional(bidirectional).dropout(dropout));
  }
};
using Modules = ::testing::Types<torch::nn::LSTM, torch::nn::GRU>;
TYPED_TEST_SUITE(RecurrentMemory, Modules);

// Of bytes that a time step adds: what it gives, and the state at every 16th.
// promise: recurrent.h#run_in_chunks
TYPED_TEST(RecurrentMemory, GrowsWithTheChunkAndNotWithTheGatesOfTheSequence) {
  const std::int64_t row = kBatch * kWidth * 4;
  const auto net = this->net();
  const auto at = [&](std::int64_t steps, const ChunkOptions& options, bool plain = false) {
    return cost_of(net, steps, options, plain).peak;
  };
  const auto for_a_step = [&](const ChunkOptions& options, bool plain = false) {
    return static_cast<double>(at(2048, options, plain) - at(512, options, plain)) /
           static_cast<double>(1536 * row);
  };
  const double states = (TestFixture::kLstm ? 2.0 : 1.0) / 16;
  EXPECT_NEAR(for_a_step({.steps = 16}), 1 + states, 0.01);
  // What a chunk adds: gates, states before steps, what derivatives are multiples of.
  const double kept = TestFixture::kLstm ? 7 : 5;
  EXPECT_NEAR(for_a_step({.steps = 16, .recompute = false}), 1 + kept, 0.01);
  EXPECT_GE(for_a_step({}, true), kept);  // the module's own
  const auto for_a_step_of_a_chunk =
      static_cast<double>(at(512, {.steps = 128}) - at(512, {.steps = 64})) /
      static_cast<double>(64 * row);
  const auto states_saved =
      static_cast<double>(512 / 64 - 512 / 128) * (TestFixture::kLstm ? 2.0 : 1.0) / 64;
  EXPECT_NEAR(for_a_step_of_a_chunk + states_saved, TestFixture::kLstm ? 8 : 7, 0.01);
  EXPECT_LT(at(2048, {}) * 4, at(2048, {}, true));
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(RecurrentMemory, OneWorkspaceForALayerIsAllocatedForAllChunks) {
  for (const bool bidirectional : {false, true}) {
    auto net = this->net(2, bidirectional, 0.25);
    const auto few = cost_of(net, 16, {.steps = 8});
    const auto many = cost_of(net, 160, {.steps = 8});
    EXPECT_EQ(many.allocations, few.allocations);
    EXPECT_EQ(many.in_backward, few.in_backward);
    // Without recomputation each chunk's gates are kept, and nothing else is allocated for one.
    const ChunkOptions kept{.steps = 8, .recompute = false};
    const std::int64_t parts = TestFixture::kLstm ? 4 : 2;
    const std::int64_t chunks = (160 - 16) / 8 * 2 * (bidirectional ? 2 : 1);
    EXPECT_EQ(cost_of(net, 160, kept).allocations - cost_of(net, 16, kept).allocations,
              parts * chunks);
    EXPECT_EQ(cost_of(net, 160, kept).in_backward, cost_of(net, 16, kept).in_backward);
  }
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(RecurrentMemory, AFrozenWeightHasNoGradientAndWhatWasKeptGoesWithBackward) {
  auto net = this->net();
  const auto all = cost_of(net, 16, {.steps = 8}).in_backward;
  net->named_parameters()["weight_hh_l0"].set_requires_grad(false);
  EXPECT_LT(cost_of(net, 16, {.steps = 8}).in_backward, all);
  const auto x = torch::randn({256, kBatch, kWidth});
  for (const bool again : {false, true}) {
    MemoryMeter meter;
    const auto y = std::get<0>(run_in_chunks(net, x, {}, {.recompute = again}));
    y.backward(torch::ones_like(y));
    const auto left = meter.current() - static_cast<std::int64_t>(y.nbytes());
    EXPECT_LE(left, 4 * kBatch * kWidth * 4);  // the last state
  }
}

// Of what dropout gives, a byte for each element is kept, and neither it nor its noise.
// promise: recurrent.h#run_in_chunks
TYPED_TEST(RecurrentMemory, DropoutKeepsAByteForEachElement) {
  const std::int64_t row = kBatch * kWidth;
  const auto kept = [&](double dropout) {
    const auto net = this->net(2, false, dropout);
    const auto x = torch::randn({512, kBatch, kWidth});
    MemoryMeter meter;
    const auto y = std::get<0>(run_in_chunks(net, x));
    return meter.current();
  };
  EXPECT_EQ(kept(0.25) - kept(0), 512 * row);
}

/// A net whose LSTM or GRU runs in chunks; shards differ in length.
template <class Rnn>
struct Net : torch::nn::Module {
  explicit Net(bool again) : again(again) {
    torch::manual_seed(4);
    rnn = register_module("rnn", RecurrentMemory<Rnn>::net(2, true, 0.25));
    out = register_module("out", torch::nn::Linear(2 * kWidth, 3));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& lengths) {
    const auto y = std::get<0>(
        run_in_chunks(rnn, x, {}, {.steps = 3, .recompute = again, .lengths = lengths}));
    return out->forward(y).square().mean();
  }
  Rnn rnn = nullptr;
  torch::nn::Linear out = nullptr;
  bool again;
};

std::pair<torch::Tensor, torch::Tensor> samples_of(std::uint64_t number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(number);
  return {torch::randn({10, 4, kWidth}, generator),
          torch::randint(1, 11, {4}, generator, torch::kInt64)};
}

template <class Module>
std::string trained(int size, bool again) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    Net<Module> net(again);
    Trainer trainer(group, net, Adam{.lr = 0.01}, {.shards = 5, .seed = 2, .clip = {.norm = 0.5}});
    for (int step = 0; step < 3; ++step) {
      const auto report = trainer.step([&](Shard& shard) {
        const auto [x, lengths] = samples_of(static_cast<std::uint64_t>(10 * step + shard.index()));
        return shard.loss(net.forward(x, lengths));
      });
      EXPECT_TRUE(report.applied) << report.dropped_because;
    }
    return parameters_sha256(net) + trainer.state_sha256();
  });
}

template <class Module>
class RecurrentInATrainer : public ::testing::Test {};
TYPED_TEST_SUITE(RecurrentInATrainer, Modules);

// promise: recurrent.h#run_in_chunks
TYPED_TEST(RecurrentInATrainer, HasTheBytesWithoutRecomputationOnAnyNumberOfWorkers) {
  const auto plain = trained<TypeParam>(1, false);
  for (const int size : {1, 2, 3}) EXPECT_EQ(trained<TypeParam>(size, true), plain) << size;
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(RecurrentInATrainer, AndInADataParallelWithOneSyncForEachStep) {
  const auto of = [](bool again) {
    return text_of_rank_0(2, [&](const Job& job) {
      const Group group(job);
      Net<TypeParam> net(again);
      DataParallel parallel(group, net);
      torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        torch::manual_seed(static_cast<std::uint64_t>(100 * step + job.rank()));
        optimizer.zero_grad();
        const auto [x, lengths] = samples_of(static_cast<std::uint64_t>(2 * step + job.rank()));
        net.forward(x, lengths).backward();
        optimizer.step();
      }
      EXPECT_EQ(parallel.report().step, 3);
      expect_equal_everywhere(group, net);
      return parameters_sha256(net);
    });
  };
  EXPECT_EQ(of(true), of(false));
}

}  // namespace
}  // namespace tutti::test::recurrent_training
