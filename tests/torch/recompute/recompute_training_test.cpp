// Segments that run again in backward, in a Trainer and in a DataParallel.

#include "torch/training.h"

namespace tutti::test::recompute_training {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kWidth = 6;

/// Layers with dropout and a batch norm; each is a segment, if asked for.
struct Net : torch::nn::Module {
  explicit Net(bool again) : again(again) {
    torch::manual_seed(4);
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), torch::nn::BatchNorm1d(kWidth),
                                torch::nn::Tanh(), torch::nn::Dropout(0.25))));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = again ? recompute(layer, x) : layer->forward(x);
    return x;
  }
  std::vector<torch::nn::Sequential> layers;
  bool again;
};

torch::Tensor samples_of(std::uint64_t number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(number);
  return torch::randn({4, kWidth}, generator);
}

std::string trained(int size, bool again) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    Net net(again);
    Trainer trainer(group, net, Adam{.lr = 0.1}, {.shards = 5, .seed = 2, .clip = {.norm = 0.5}});
    for (int step = 0; step < 4; ++step) {
      const auto report = trainer.step([&](Shard& shard) {
        const auto x = samples_of(static_cast<std::uint64_t>(10 * step + shard.index()));
        return shard.loss(net.forward(x).square().mean());
      });
      EXPECT_TRUE(report.applied) << report.dropped_because;
    }
    return parameters_sha256(net) + trainer.state_sha256();
  });
}

// promise: recompute.h#recompute
TEST(RecomputeInATrainer, HasTheBytesOfThePlainRunOnAnyNumberOfWorkers) {
  const auto plain = trained(1, false);
  for (const int size : {1, 2, 3}) EXPECT_EQ(trained(size, true), plain) << size;
}

// promise: recompute.h#recompute
TEST(RecomputeInADataParallel, HasTheBytesOfThePlainRunAndOneSyncForEachStep) {
  const auto of = [](bool again) {
    return text_of_rank_0(2, [&](const Job& job) {
      const Group group(job);
      Net net(again);
      here(net);
      DataParallel parallel(group, net);
      torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        torch::manual_seed(static_cast<std::uint64_t>(100 * step + job.rank()));
        optimizer.zero_grad();
        net.forward(samples_of(static_cast<std::uint64_t>(2 * step + job.rank()))).sum().backward();
        optimizer.step();
      }
      EXPECT_EQ(parallel.report().step, 3);
      return parameters_sha256(net);
    });
  };
  EXPECT_EQ(of(true), of(false));
}

// promise: recompute.h#recompute
TEST(RecomputeInATrainer, ASegmentThatFailsInBackwardDropsTheStepOnAll) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(false);
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 2});
    const auto before = parameters_sha256(net);
    const auto text = text_of([&] {
      trainer.step([&](Shard& shard) {
        const auto calls = std::make_shared<int>(0);  // backward comes when this is over
        const bool counts = shard.index() == 1;
        const auto y = recompute(
            {.name = "noise"},
            [&net, calls, counts](const torch::Tensor& x) {
              return net.forward(x) * (counts ? ++*calls : 1);
            },
            samples_of(1));
        return shard.loss(y.mean());
      });
    });
    EXPECT_THAT(text, HasSubstr(job.rank() == 1 ? "run again, the segment gives another result"
                                                : "rank 1"));
    EXPECT_EQ(parameters_sha256(net), before);
    EXPECT_TRUE(
        trainer.step([&](Shard& shard) { return shard.loss(net.forward(samples_of(1)).mean()); })
            .applied);
  });
}

}  // namespace
}  // namespace tutti::test::recompute_training
