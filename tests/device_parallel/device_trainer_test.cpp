// A Trainer of a model on the test device: the host has its parameters and the optimizer's state.

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device_parallel/device_trainer_models.h"
#include "support/process_ranks.h"
#include "support/running_command.h"
#include "support/spread.h"
#include "torch/trainer/trainer_state.h"

namespace tutti::test::device_trainer_cases {
namespace {

using test_device::Held;

std::vector<Case> cases() {
  return {
      {"Adam"},
      {"AdamW, averages, schedule and loss scale",
       AdamW{.lr = 0.01},
       {.schedule = Schedule::cosine(6),
        .loss_scale = {.start = 8, .dynamic = true, .grow_after = 2},
        .ema_decay = 0.9}},
      {"momentum, clipped by norm and value",
       Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
       {.clip = {.norm = 0.5, .value = 0.1}}},
      {"torch's optimizer", torch_optimizer<torch::optim::RMSprop>(
                                torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true))},
  };
}

/// What six steps have left, on each step's end, and what evaluations have given.
std::string trained(const Job& job, const Case& one, c10::Device where) {
  torch::manual_seed(3);
  Net net;
  net.to(where);
  Trainer trainer(job, net, one.optimizer, options_of(one));
  std::string seen;
  for (int k = 0; k < 6; ++k) {
    seen += text_of_result(step(trainer, net, where)) + trainer.state_sha256();
    const auto metrics =
        trainer.evaluate(10, 3, [&](const std::vector<std::int64_t>& rows, ShardMetrics& found) {
          const Batch batch(10, 8);
          const auto at = torch::tensor(rows);
          found.sum("loss", net.loss(batch.x.index_select(0, at).to(where),
                                     batch.y.index_select(0, at).to(where))
                                .item<double>());
        });
    seen += fmt::format(" {}\n", metrics.at("loss"));
    if (k == 3) {
      trainer.edit([&] {
        const torch::NoGradGuard no_grad;
        net.second->bias.fill_(0.25);
        net.norm->running_mean.zero_();
      });
    }
    if (one.options.ema_decay > 0) {
      trainer.with_ema([&] { seen += bytes_of(net.first->weight); });
    }
    EXPECT_FALSE(net.never->weight.grad().defined());
  }
  return seen + state_of(net);
}

// promise: gpu#a-trainer
TEST(DeviceTrainer, HasTheBytesOfTheCpuOnAnyNumberOfWorkers) {
  for (const auto& one : cases()) {
    SCOPED_TRACE(one.name);
    expect_bytes_of_the_cpu(
        [&](const Job& job, c10::Device where) { return trained(job, one, where); });
  }
}

/// What steps from..to have left, on `where`; those before are in a checkpoint there, which the
/// last one writes.
std::string part_of(const Job& job, const Case& one, c10::Device where, const std::string& folder,
                    int from, int to) {
  torch::manual_seed(3);
  Net net;
  net.to(where);
  Trainer trainer(job, net, one.optimizer, options_of(one));
  if (from > 1) {
    EXPECT_EQ(trainer.load(folder), from - 1);
  }
  std::string seen;
  for (int k = from; k <= to; ++k) {
    seen += text_of_result(step(trainer, net, where)) + trainer.state_sha256() + "\n";
  }
  trainer.save(folder);
  return seen + state_of(net);
}

// promise: gpu#a-trainer
TEST(DeviceTrainer, ResumesACheckpointOfTheCpuOnAnotherNumberOfWorkersAndTheReverse) {
  const auto one = cases()[1];
  const TemporaryFolder folder;
  const auto straight = text_of_rank_0(
      1, [&](const Job& job) { return part_of(job, one, torch::kCPU, folder.file("0"), 1, 6); });
  for (const auto held : kProfiles) {
    const std::string name = folder.file(held == Held::kSideStreams ? "side" : "default");
    text_on_device_rank_0(
        2, held, [&](const Job& job) { return part_of(job, one, local_device(job), name, 1, 3); });
    const auto on_cpu = text_of_rank_0(
        3, [&](const Job& job) { return part_of(job, one, torch::kCPU, name, 4, 6); });
    EXPECT_TRUE(straight.ends_with(on_cpu)) << on_cpu.substr(0, 200);
    text_of_rank_0(
        2, [&](const Job& job) { return part_of(job, one, torch::kCPU, name + "b", 1, 3); });
    const auto on_device = text_on_device_rank_0(3, held, [&](const Job& job) {
      return part_of(job, one, local_device(job), name + "b", 4, 6);
    });
    EXPECT_TRUE(straight.ends_with(on_device)) << on_device.substr(0, 200);
  }
}

TEST(DeviceTrainer, GradientsThatAreHandedInAndLookedAtAreOfTheDevice) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(3);
    Net net;
    net.to(where);
    Trainer trainer(job, net, Adam{.lr = 0.01}, {.shards = 3});
    std::string seen;
    for (int k = 0; k < 3; ++k) {
      trainer.accumulate([&](Shard& shard) {
        const Batch batch(4, shard.seed());
        std::vector<torch::Tensor> used;
        for (const auto& parameter : net.parameters()) used.push_back(parameter);
        auto gradients = torch::autograd::grad({net.loss(batch.x.to(where), batch.y.to(where))},
                                               used, {}, {}, false, /*allow_unused=*/true);
        return shard.gradients(gradients, 1.5);
      });
      const auto gradient = trainer.gradient("second.weight");
      EXPECT_EQ(gradient.device(), where);
      seen += bytes_of(gradient) + fmt::format("{}", trainer.gradient_norm());
      trainer.apply();
    }
    return seen + state_of(net);
  });
}

/// Four steps of a model of that type.
std::string trained_plain(const Job& job, c10::Device where, c10::ScalarType type, bool again,
                          bool rebuilds) {
  torch::manual_seed(5);
  Plain net;
  net.to(where, type);
  Trainer trainer(job, net, AdamW{.lr = 0.01},
                  {.shards = 5, .clip = {.norm = 0.3}, .desync_check_every = 1, .audit_every = 2});
  std::string seen;
  for (int k = 0; k < 4; ++k) {
    // Two of the parameters are left out in turn.
    net.first->bias.requires_grad_(k != 2);
    net.second->weight.requires_grad_(k != 1);
    const auto result = trainer.step([&](Shard& shard) {
      return shard.loss(net.loss(shard.seed(), where, again), 1 + shard.index() % 2);
    });
    seen += text_of_result(result) + trainer.state_sha256();
    if (rebuilds) TrainerState::of(trainer).rebuild();
  }
  return seen + state_of(net);
}

// promise: gpu#a-trainer
TEST(DeviceTrainer, OfAnyTypeOfParametersHasTheSameBytesOnAnyNumberOfWorkers) {
  for (const auto type : {torch::kFloat64, torch::kBFloat16, torch::kFloat16}) {
    for (const auto held : kProfiles) {
      std::set<std::string> seen;
      for (const int size : {1, 2, 3}) {
        seen.insert(text_on_device_rank_0(size, held, [&](const Job& job) {
          return trained_plain(job, local_device(job), type, false, false);
        }));
      }
      EXPECT_EQ(seen.size(), 1U) << type;
    }
  }
}

TEST(DeviceTrainer, RecomputesAndIsMadeAnewToTheSameBytes) {
  const auto plain = text_of_rank_0(1, [](const Job& job) {
    return trained_plain(job, torch::kCPU, torch::kFloat32, false, false);
  });
  for (const auto held : kProfiles) {
    for (const int size : {1, 2, 3}) {
      for (const bool rebuilds : {false, true}) {
        EXPECT_EQ(text_on_device_rank_0(size, held,
                                        [&](const Job& job) {
                                          return trained_plain(job, local_device(job),
                                                               torch::kFloat32, true, rebuilds);
                                        }),
                  plain)
            << size << rebuilds;
      }
    }
  }
}

// Nodes are what the device adds to: what the program has, or two parameters share, stays.
// promise: gpu#a-trainer
TEST(DeviceTrainer, GradientsThatTheProgramKeepsOrThatAreSharedStayWhatTheyAre) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(3);
    struct Two : nn::Module {
      torch::Tensor a = register_parameter("a", torch::randn({5}));
      torch::Tensor b = register_parameter("b", torch::randn({5}));
    } net;
    net.to(where);
    std::vector<torch::Tensor> kept;
    net.a.register_hook([&](const torch::Tensor& gradient) { kept.push_back(gradient); });
    Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 6});
    const auto given = torch::full({5}, 0.5).to(where);
    std::string seen;
    for (int k = 0; k < 3; ++k) {
      trainer.step([&](Shard& shard) {
        if (shard.index() % 3 == 1) {
          return shard.gradients({given, k == 1 ? torch::Tensor() : given});
        }
        // One tensor is the gradient of both.
        const auto loss = ((net.a + net.b) * static_cast<double>(shard.seed() % 7)).sum();
        return shard.loss(loss, 1 + shard.index() % 2);
      });
      for (const auto& gradient : std::exchange(kept, {})) {
        const auto values = gradient.cpu();
        EXPECT_TRUE(values.eq(values[0]).all().item<bool>()) << values;
        EXPECT_EQ(values[0].item<double>(), std::floor(values[0].item<double>()));
      }
      EXPECT_TRUE(given.eq(0.5).all().item<bool>());
      seen += trainer.state_sha256();
    }
    return seen + state_of(net);
  });
}

// promise: gpu#a-trainer
TEST(DeviceTrainer, TheHostWaitsOnceForAllShardsOfAStep) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    const auto where = local_device(job);
    Plain net;
    net.to(where);
    Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 8, .desync_check_every = 0});
    const auto bytes_of_step = [&] {
      const auto result = trainer.step(
          [&](Shard& shard) { return shard.loss(net.loss(shard.seed(), where, false)); });
      return result.report.device_bytes;
    };
    bytes_of_step();  // the first one looks at every shard's gradients
    std::size_t parameters = 0;
    std::size_t count = 0;
    for (const auto& parameter : net.parameters()) {
      parameters += parameter.nbytes();
      ++count;
    }
    // One sum to the host and the values back; and a number of float64 for each loss and gradient.
    EXPECT_EQ(bytes_of_step(), 2 * parameters + 8 * (8 + 8 * count));
  });
}

TEST(DeviceTrainer, OfTwoHostsHasTheBytesOfOne) {
  const auto straight = text_of_rank_0(1, [](const Job& job) {
    return trained_plain(job, torch::kCPU, torch::kFloat32, false, false);
  });
  for (const auto held : kProfiles) {
    const auto outcome = outcome_of_device_workers(
        3, held,
        [&](const Job& job) {
          EXPECT_EQ(trained_plain(job, local_device(job), torch::kFloat32, false, false), straight);
        },
        {.hosts = even_hosts(3, 2)});
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

}  // namespace
}  // namespace tutti::test::device_trainer_cases
