// Tensors that belong to a shard: a hidden state that is carried from step to step.

#include <set>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::shard_state_cases {
namespace {

using ::testing::HasSubstr;

struct Carrier {
  torch::nn::LSTM lstm{5, 8};

  /// Carries the hidden state on, as truncated backpropagation through time does.
  ShardAnswer operator()(Shard& shard) {
    auto h = shard.state("h", [] { return torch::zeros({1, 2, 8}); });
    auto c = shard.state("c", [] { return torch::randn({1, 2, 8}); });
    const auto x = torch::randn({3, 2, 5});
    const auto [out, last] = lstm->forward(x, std::make_tuple(h.clone(), c.clone()));
    h.copy_(std::get<0>(last).detach());
    c.copy_(std::get<1>(last).detach());
    return shard.loss(out.square().mean());
  }
};

// promise: trainer.h#state
TEST(ShardState, CarriesOnTheSameOnAnyNumberOfWorkersAndThroughACheckpoint) {
  const TemporaryFolder folder;
  const auto run = [&](int workers, std::int64_t until, bool keeps) {
    return text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(1);
      Carrier carrier;
      Trainer trainer(job, *carrier.lstm, Adam{.lr = 0.1}, {.shards = 5, .seed = 2});
      if (keeps) trainer.load(folder.file("run"));
      while (trainer.steps() < until) trainer.step(std::ref(carrier));
      if (keeps) trainer.save(folder.file("run"));
      return trainer.state_sha256();
    });
  };
  std::set<std::string> ends;
  for (const int workers : {1, 2, 3, 8}) ends.insert(run(workers, 6, false));
  run(3, 2, true);
  run(1, 4, true);
  ends.insert(run(2, 6, true));
  EXPECT_EQ(ends.size(), 1u);
}

// promise: trainer.h#state
TEST(ShardState, AStepThatIsDroppedOrFailsLeavesIt) {
  on_workers(2, [](const Job& job) {
    torch::nn::Linear model(2, 1);
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    double seen = -1;
    const auto step = [&](bool bad, bool throws) {
      return trainer.step([&](Shard& shard) {
        auto counter = shard.state("counter", [] { return torch::zeros({1}); });
        seen = counter.item<double>();
        counter += 1;
        EXPECT_EQ(shard.state("counter", [] { return torch::zeros({9}); }).item<double>(),
                  seen + 1);
        if (throws) throw std::runtime_error("stop");
        auto loss = model->forward(torch::ones({1, 2})).sum();
        return shard.loss(bad ? loss * INFINITY : loss);
      });
    };
    EXPECT_FALSE(step(true, false).applied);
    EXPECT_EQ(seen, 0);
    step(false, false);
    EXPECT_EQ(seen, 0);
    EXPECT_THROW(step(false, true), std::exception);
    step(false, false);
    EXPECT_EQ(seen, 1);
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  trainer.step([](Shard& shard) {
                    shard.state("sparse", [] { return torch::Tensor(); });
                    return shard.nothing();
                  });
                }),
                HasSubstr("state \"sparse\" must be a dense tensor"));
  });
}

}  // namespace
}  // namespace tutti::test::shard_state_cases
