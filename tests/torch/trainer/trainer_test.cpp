// The Trainer against plain libtorch, and what a step returns.

#include <algorithm>
#include <cmath>
#include <set>

#include "run/data/leaf_seed.h"
#include "torch/training.h"

namespace tutti::test::trainer_cases {
namespace {

struct Pair {
  Optimizer ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> torchs;
};

void expect_equal_to_torch(const Pair& pair, double clip) {
  on_workers(2, [&](const Job& job) {
    torch::manual_seed(3);
    auto model = mlp();
    auto alone = mlp();
    copy_parameters(*model, *alone);
    auto optimizer = pair.torchs(alone->parameters());
    Trainer trainer(job, *model, pair.ours, {.shards = 3, .clip = {.norm = clip}});
    // Without this, rank 1's comparison would start from other values.
    copy_parameters(*model, *alone);
    for (std::uint64_t step = 1; step <= 20; ++step) {
      const Batch batch(19, step);
      const auto result = trainer.step([&](Shard& shard) { return rows_of(shard, model, batch); });
      optimizer->zero_grad();
      const auto loss = batch.loss(alone, 0, 19);
      loss.backward();
      if (clip > 0) {
        const double norm = torch::nn::utils::clip_grad_norm_(alone->parameters(), clip);
        ASSERT_TRUE(result.gradient_norm);
        EXPECT_NEAR(*result.gradient_norm, norm, 1e-5 * norm);
        EXPECT_GT(norm, clip) << "the clip does not bind";
      }
      optimizer->step();
      EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
      EXPECT_EQ(result.weight, 19);
      EXPECT_EQ(result.shards, 3);
      expect_close(*model, *alone, 5e-6);
    }
  });
}

// promise: optimizer.h#Adam, optimizer.h#AdamW, optimizer.h#RmsProp
// promise: optimizer.h#Sgd
TEST(Trainer, EqualsTorchOnTheJoinedBatch) {
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::RMSpropOptions;
  using torch::optim::SGDOptions;
  const auto rms_prop = [](RMSpropOptions options) {
    return [options](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::RMSprop>(std::move(parameters), options);
    };
  };
  const auto sgd = [](SGDOptions options) {
    return [options](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
    };
  };
  const std::vector<Pair> pairs = {
      {Sgd{.lr = 0.1}, sgd(SGDOptions(0.1))},
      {Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.1},
       sgd(SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.1))},
      {Sgd{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
       sgd(SGDOptions(0.05).momentum(0.9).weight_decay(0.1).nesterov(true))},
      // Decoupled and scaled by the rate, it is a plain step on shrunk parameters.
      {Sgd{.lr = 0.1, .weight_decay = 0.1, .decay = Decay::times_rate},
       sgd(SGDOptions(0.1).weight_decay(0.1))},
      {Sgd{.lr = 0.1, .weight_decay = 0.01, .decay = Decay::times_schedule},
       sgd(SGDOptions(0.1).weight_decay(0.1))},
      {RmsProp{.lr = 1e-3, .weight_decay = 0.1}, rms_prop(RMSpropOptions(1e-3).weight_decay(0.1))},
      {RmsProp{.lr = 1e-3, .alpha = 0.9, .eps = 1e-6, .momentum = 0.9, .centered = true},
       rms_prop(RMSpropOptions(1e-3).alpha(0.9).eps(1e-6).momentum(0.9).centered(true))},
      {AdamW{.lr = 1e-2, .weight_decay = 1e-3, .decay = Decay::times_schedule},
       [](std::vector<torch::Tensor> parameters) {
         return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                      AdamWOptions(1e-2).weight_decay(0.1));
       }},
      {Adam{.lr = 1e-2, .weight_decay = 0.1},
       [](std::vector<torch::Tensor> parameters) {
         return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                     AdamOptions(1e-2).weight_decay(0.1));
       }},
      {Adam{.lr = 1e-2, .beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true},
       [](std::vector<torch::Tensor> parameters) {
         return std::make_unique<torch::optim::Adam>(
             std::move(parameters),
             AdamOptions(1e-2).betas({0.9, 0.9}).weight_decay(0.1).amsgrad(true));
       }},
      {AdamW{.lr = 1e-2, .beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true},
       [](std::vector<torch::Tensor> parameters) {
         return std::make_unique<torch::optim::AdamW>(
             std::move(parameters),
             AdamWOptions(1e-2).betas({0.9, 0.9}).weight_decay(0.1).amsgrad(true));
       }},
      {AdamW{.lr = 1e-2, .weight_decay = 0.1}, [](std::vector<torch::Tensor> parameters) {
         return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                      AdamWOptions(1e-2).weight_decay(0.1));
       }}};
  for (const auto& pair : pairs) {
    expect_equal_to_torch(pair, 0);
    expect_equal_to_torch(pair, 0.05);
  }
}

/// With batch statistics and dropout: the shards one after the other, with the same seeds, in plain
/// libtorch.
// promise: numerics#what-the-bits-may-depend-on-and-what-not, trainer.h#Shard, trainer.h#Trainer
TEST(Trainer, EqualsALoopOverTheShardsWrittenByHand) {
  const auto net = [] {
    // No bias in front of the normalisation: its gradient would be rounding errors alone.
    return torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(6, 30).bias(false)),
                                 torch::nn::BatchNorm1d(30), torch::nn::ReLU(),
                                 torch::nn::Dropout(0.4), torch::nn::Linear(30, 3));
  };
  on_workers(3, [&](const Job& job) {
    constexpr int kShards = 4;
    torch::manual_seed(3);
    auto model = net();
    auto alone = net();
    Trainer trainer(job, *model, AdamW{.lr = 1e-2},
                    {.shards = kShards, .seed = 8, .clip = {.norm = 0.05}});
    copy_parameters(*model, *alone);
    torch::optim::AdamW optimizer(alone->parameters(), torch::optim::AdamWOptions(1e-2));
    const auto loss_of = [](torch::nn::Sequential& any, const Batch& batch, int shard) {
      return batch.loss(any, 5 * shard, 5 * shard + 5);
    };
    for (std::int64_t step = 1; step <= 20; ++step) {
      const Batch batch(20, static_cast<std::uint64_t>(step));
      trainer.step([&](Shard& shard) {
        return shard.loss(loss_of(model, batch, static_cast<int>(shard.index())),
                          1.0 + static_cast<double>(shard.index()));
      });
      const torch::NoGradGuard no_grad;
      std::vector<torch::Tensor> begin, sums;
      for (const auto& buffer : alone->buffers()) begin.push_back(buffer.clone());
      for (const auto& buffer : begin) sums.push_back(torch::zeros_like(buffer));
      optimizer.zero_grad();
      for (int s = 0; s < kShards; ++s) {
        auto buffers = alone->buffers();
        for (std::size_t b = 0; b < begin.size(); ++b) buffers[b].copy_(begin[b]);
        torch::manual_seed(leaf_seed(8, step, s));
        {
          const torch::AutoGradMode with_grad(true);
          (loss_of(alone, batch, s) * (1.0 + s) / 10.0).backward();
        }
        for (std::size_t b = 0; b < begin.size(); ++b) sums[b] += buffers[b];
      }
      EXPECT_GT(torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.05), 0.05);
      optimizer.step();
      auto buffers = alone->buffers();
      for (std::size_t b = 0; b < begin.size(); ++b) {
        buffers[b].copy_(buffers[b].is_floating_point() ? sums[b] / kShards : begin[b] + 1);
        EXPECT_TRUE(torch::allclose(model->buffers()[b], buffers[b], 1e-5, 1e-6));
      }
      expect_close(*model, *alone, 1e-5);
    }
  });
}

// promise: optimizer.h#Optimizer
TEST(Trainer, UntouchedParametersKeepValueAndStateByteForByte) {
  on_workers(2, [](const Job& job) {
    torch::nn::ModuleList model(torch::nn::Linear(6, 4), torch::nn::Linear(6, 4));
    Trainer trainer(job, *model, AdamW{.lr = 0.1, .weight_decay = 0.5}, {.shards = 2});
    const auto step = [&](std::size_t which) {
      return trainer.step([&](Shard& shard) {
        const auto x = torch::randn({3, 6});
        return shard.loss(model[which]->as<torch::nn::Linear>()->forward(x).square().mean());
      });
    };
    step(0);
    step(1);
    const auto weight = model[1]->as<torch::nn::Linear>()->weight;
    const auto before = weight.clone();
    const auto result = step(0);
    EXPECT_TRUE(torch::equal(weight, before));
    EXPECT_EQ(result.report.parameters_skipped, 2);
    EXPECT_EQ(result.report.max_sent_bytes * 2, result.report.dense_bytes);
    EXPECT_FALSE(weight.grad().defined());
    step(1);
    EXPECT_FALSE(torch::equal(weight, before));
  });
}

// promise: trainer.h#Trainer
TEST(Trainer, ParametersLieOncePerHostAtAddressesThatNeverChange) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    auto weight = model->parameters()[0];
    const auto* const address = weight.data_ptr();
    trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(4, 1)); });
    EXPECT_EQ(weight.data_ptr(), address);
    trainer.group().barrier();
    // One worker's write is the other's read.
    if (job.rank() == 1) weight.data_ptr<float>()[5] = 42;
    trainer.group().barrier();
    EXPECT_EQ(weight.data_ptr<float>()[5], 42);
    trainer.group().barrier();
  });
}

// promise: trainer.h#apply, trainer.h#gradient, trainer.h#gradient_norm
TEST(Trainer, BetweenTheHalvesTheFoldedGradientCanBeRead) {
  for (const double clip : {0.0, 1e-3}) {
    on_workers(3, [&](const Job& job) {
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4, .clip = {.norm = clip}});
      auto alone = mlp();
      copy_parameters(*model, *alone);
      const Batch batch(10, 1);
      batch.loss(alone, 0, 10).backward();
      trainer.accumulate([&](Shard& shard) { return rows_of(shard, model, batch); });
      double squares = 0;
      const auto parameters = alone->named_parameters();
      for (const auto& item : parameters) {
        const auto gradient = trainer.gradient(item.key());
        EXPECT_TRUE(torch::allclose(gradient, item.value().grad(), 1e-5, 1e-7)) << item.key();
        squares += item.value().grad().square().sum().item<double>();
      }
      EXPECT_NEAR(trainer.gradient_norm(), std::sqrt(squares), 1e-6);
      EXPECT_EQ(text_of<InvalidArgument>([&] { trainer.gradient("nobody"); }),
                "there is no parameter \"nobody\" (the first one is \"0.weight\")");
      const auto before = model->parameters()[0].clone();
      trainer.group().barrier();
      EXPECT_TRUE(trainer.apply().applied);
      EXPECT_FALSE(torch::equal(model->parameters()[0], before));
      EXPECT_THROW(trainer.gradient_norm(), InvalidArgument);
      EXPECT_THROW(trainer.apply(), InvalidArgument);
    });
  }
}

// promise: metrics.h#gather, trainer.h#indices, trainer.h#metrics
TEST(Trainer, EverySampleComesOncePerEpochOnAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 5}) {
    on_workers(workers, [](const Job& job) {
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3, .seed = 9});
      std::vector<double> epochs[2];
      for (int step = 0; step < 6; ++step) {
        const auto result = trainer.step([&](Shard& shard) {
          const auto samples = shard.indices(20, 3);  // 9, 9 and 2 samples per step
          for (const auto sample : samples) {
            shard.metrics().gather("samples", static_cast<double>(sample));
          }
          if (samples.empty()) return shard.nothing();
          return shard.loss(Batch(2, 1).loss(model, 0, 2), static_cast<double>(samples.size()));
        });
        EXPECT_EQ(result.weight, step % 3 == 2 ? 2 : 9);
        const auto& samples = result.metrics.gathered("samples");
        auto& epoch = epochs[step / 3];
        epoch.insert(epoch.end(), samples.begin(), samples.end());
      }
      EXPECT_NE(epochs[0], epochs[1]);
      for (auto& epoch : epochs) {
        std::sort(epoch.begin(), epoch.end());
        ASSERT_EQ(epoch.size(), 20u);
        for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(epoch[i], static_cast<double>(i));
      }
    });
  }
}

// promise: trainer.h#gradients
TEST(Trainer, GradientsOfTheUsersOwn) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    auto other = mlp();
    Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 3});
    copy_parameters(*model, *other);
    trainer.group().barrier();
    Trainer reference(job, *other, Adam{.lr = 0.1}, {.shards = 3, .name = "other"});
    const Batch batch(10, 1);
    reference.step([&](Shard& shard) { return rows_of(shard, other, batch); });
    trainer.step([&](Shard& shard) {
      const auto [begin, end] = share_of(10, shard.index(), shard.count());
      const auto loss = batch.loss(model, begin, end);
      return shard.gradients(torch::autograd::grad({loss}, model->parameters()),
                             static_cast<double>(end - begin));
    });
    EXPECT_EQ(parameters_sha256(*model), parameters_sha256(*other));
  });
}

// promise: trainer.h#Shard, trainer.h#nothing, trainer_options.h#BufferRule
TEST(Trainer, BuffersAreTheMeanOverTheShardsThatRan) {
  on_workers(2, [](const Job& job) {
    auto norm = torch::nn::BatchNorm1d(3);
    Trainer trainer(job, *norm, Sgd{.lr = 0.1}, {.shards = 4});
    trainer.step([&](Shard& shard) {
      if (shard.index() == 0) return shard.nothing();
      const auto x = torch::randn({8, 3}) + static_cast<double>(shard.index());
      shard.metrics().gather("mean", x.mean(0)[0].item<double>());
      return shard.loss(norm->forward(x).square().sum());
    });
    // Each shard started from mean 0 and moved by a tenth of its batch's mean.
    EXPECT_NEAR(norm->running_mean[0].item<double>(), 0.1 * (1 + 2 + 3) / 3, 0.1);
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 1);
  });
}

// promise: trainer_options.h#BufferRule, trainer_options.h#buffers
TEST(Trainer, EachBufferFollowsItsRule) {
  on_workers(2, [](const Job& job) {
    auto norm = torch::nn::BatchNorm1d(3);
    const auto named = [](std::string name) {
      return [name](const std::string& buffer) { return buffer == name; };
    };
    Trainer trainer(job, *norm, Sgd{.lr = 0.1},
                    {.shards = 4,
                     .buffers = {{named("running_mean"), BufferRule::first},
                                 {named("running_var"), BufferRule::keep}}});
    trainer.step([&](Shard& shard) {
      const auto x = torch::full({2, 3}, static_cast<double>(shard.index() + 1));
      return shard.index() == 0 ? shard.nothing() : shard.loss(norm->forward(x).sum());
    });
    EXPECT_TRUE(torch::allclose(norm->running_mean, torch::full({3}, 0.2)));
    EXPECT_TRUE(torch::equal(norm->running_var, torch::ones({3})));
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 1);
  });
  on_workers(1, [](const Job& job) {
    auto norm = torch::nn::BatchNorm1d(3);
    const auto all = [](const std::string&) { return true; };
    EXPECT_EQ(text_of<InvalidArgument>([&] {
                Trainer(job, *norm, Sgd{.lr = 0.1}, {.buffers = {{all, BufferRule::mean}}});
              }),
              "buffer \"num_batches_tracked\": a mean of Long");
  });
}

// promise: trainer.h#Trainer, trainer.h#shards, trainer_options.h#speeds
TEST(Trainer, UnequalSpeedsMoveShardsAndNoBit) {
  std::set<std::string> ends;
  for (const auto& speeds : {std::vector<double>{}, {1, 3}, {5, 1}}) {
    ends.insert(text_of_rank_0(2, [&](const Job& job) {
      torch::manual_seed(4);
      auto model = mlp();
      Trainer trainer(job, *model, Adam{.lr = 0.1}, {.shards = 8, .speeds = speeds});
      if (!speeds.empty() && speeds[0] == 1) {
        EXPECT_LE(trainer.shards().second - trainer.shards().first, job.rank() == 0 ? 3 : 8);
      }
      trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(19, 1)); });
      return trainer.state_sha256();
    }));
  }
  EXPECT_EQ(ends.size(), 1u);
}

}  // namespace
}  // namespace tutti::test::trainer_cases
