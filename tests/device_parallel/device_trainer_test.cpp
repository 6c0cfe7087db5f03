// A Trainer of a model on the test device: the host has its parameters and the optimizer's state.

#include <csignal>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_parallel/device_workers.h"
#include "support/process_ranks.h"
#include "support/running_command.h"
#include "support/spread.h"
#include "torch/trainer/trainer_state.h"

namespace tutti::test::device_trainer_cases {
namespace {

using test_device::Held;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;

struct Net : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(6, 17))};
  nn::BatchNorm1d norm{register_module("norm", nn::BatchNorm1d(17))};
  nn::Dropout dropout{register_module("dropout", nn::Dropout(0.3))};
  nn::Linear second{register_module("second", nn::Linear(17, 3))};
  nn::Linear never{register_module("never", nn::Linear(3, 3))};
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss(second(torch::tanh(dropout(norm(first(x))))), y);
  }
};

struct Case {
  const char* name;
  Optimizer optimizer = Adam{.lr = 0.01};
  TrainerOptions options = {};
};

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

/// A step of the Trainer, whose shards have another weight each, and one of them nothing.
StepResult step(Trainer& trainer, Net& net, c10::Device where) {
  static const Batch batch(24, 7);
  return trainer.step([&](Shard& shard) {
    const auto rows = shard.indices(24, 3);
    if (rows.empty() || (shard.step() == 2 && shard.index() == 1)) return shard.nothing();
    auto carried = shard.state("carried", [&] { return torch::zeros({1}, where); });
    carried.add_(1 + static_cast<double>(shard.index()));
    const auto at = torch::tensor(rows);
    const auto loss =
        net.loss(batch.x.index_select(0, at).to(where), batch.y.index_select(0, at).to(where));
    // A step that is dropped for a gradient that is not finite.
    const bool is_bad = shard.step() == 3 && shard.index() == 3;
    const auto carried_loss = (loss * carried).squeeze(0);
    return shard.loss(
        is_bad ? carried_loss * std::numeric_limits<double>::infinity() : carried_loss,
        static_cast<double>(rows.size()));
  });
}

TrainerOptions options_of(const Case& one) {
  auto options = one.options;
  options.shards = 4;
  options.audit_every = 2;
  options.desync_check_every = 1;
  return options;
}

std::string text_of_result(const StepResult& result) {
  return fmt::format("{} {} {} {} {}\n", result.dropped_because, result.loss, result.weight,
                     result.loss_scale, result.gradient_norm.value_or(0));
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

TEST(DeviceTrainer, AWriteThatTorchDoesNotCountIsNoticedOnTheWorkerThatMadeIt) {
  for (const auto held : kProfiles) {
    on_device_workers(2, held, [](const Job& job) {
      const auto where = local_device(job);
      Net net;
      net.to(where);
      Trainer trainer(job, net, Sgd{.lr = 0.1}, options_of({"check"}));
      step(trainer, net, where);
      if (job.rank() == 1) net.first->weight.data().fill_(1);
      const auto text = text_of<Error>([&] { step(trainer, net, where); });
      EXPECT_THAT(text, HasSubstr("\"first.weight\""));
      EXPECT_THAT(text, HasSubstr("was changed on this worker"));
      // On all workers the values are the one copy's again.
      trainer.edit([] {});
      EXPECT_TRUE(step(trainer, net, where).applied);
    });
  }
}

TEST(DeviceTrainer, AShardThatWritesToAParameterIsRefused) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    const auto where = local_device(job);
    Net net;
    net.to(where);
    Trainer trainer(job, net, Sgd{.lr = 0.1}, options_of({"check"}));
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  trainer.step([&](Shard& shard) {
                    const torch::NoGradGuard no_grad;
                    net.first->weight.zero_();
                    return shard.nothing();
                  });
                }),
                HasSubstr("wrote to parameter \"first.weight\""));
    EXPECT_THROW(step(trainer, net, where), InvalidArgument);
    trainer.edit([&] {
      const torch::NoGradGuard no_grad;
      net.first->weight.fill_(0.5);
    });
    EXPECT_TRUE(step(trainer, net, where).applied);
  });
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

// promise: gpu#what-is-refused
TEST(DeviceTrainer, WhatIsOfferedOnTheCpuAloneIsRefusedByName) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    const auto where = local_device(job);
    const auto refusal_of = [&](TrainerOptions options) {
      Net net;
      net.to(where);
      options.shards = 4;
      options.name = "faces";
      return text_of<Unsupported>([&] { Trainer trainer(job, net, Sgd{.lr = 0.1}, options); });
    };
    const auto refused = [&](const std::string& what) {
      return AllOf(HasSubstr(what + " in a Trainer of a model on " + where.str()),
                   HasSubstr("\"faces\" has to be on the CPU"));
    };
    EXPECT_THAT(refusal_of({.compression = {.codec = top_k_codec(0.1)}}),
                AllOf(HasSubstr("codec topk:0.1 in a Trainer"), HasSubstr("has to be on the CPU")));
    EXPECT_THAT(refusal_of({.logical_workers = 2, .averaging = diloco(3)}),
                HasSubstr("averaging diloco:3"));
    EXPECT_THAT(
        refusal_of({.logical_workers = 2,
                    .per_replica = [](const std::string& name) { return name.ends_with("bias"); }}),
        refused("per_replica"));
    EXPECT_THAT(
        refusal_of({.row_sparse = [](const std::string& name) { return name == "first.weight"; }}),
        refused("row-sparse parameter \"first.weight\""));
  });
}

struct Plain : nn::Module {
  nn::Embedding table{register_module("table", nn::Embedding(11, 6))};
  nn::Linear first{register_module("first", nn::Linear(6, 17))};
  nn::Dropout dropout{register_module("dropout", nn::Dropout(0.3))};
  nn::Linear second{register_module("second", nn::Linear(17, 3))};
  torch::Tensor loss(std::uint64_t seed, c10::Device where, bool again) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto words = torch::randint(11, {5}, generator, torch::kInt64).to(where);
    const auto x = table(words);
    const auto hidden = [&](const torch::Tensor& in) { return dropout(torch::tanh(first(in))); };
    return second(again ? recompute(hidden, x) : hidden(x)).to(torch::kFloat32).square().mean();
  }
};

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

// promise: gpu#a-trainer
TEST(DeviceTrainer, AShardThatFailsInItsBackwardDropsTheStepOnAllWorkers) {
  for (const auto held : kProfiles) {
    on_device_workers(3, held, [](const Job& job) {
      const auto where = local_device(job);
      Plain net;
      Plain other;
      net.to(where);
      other.to(where);
      copy_parameters(net, other);
      Trainer trainer(job, net, AdamW{.lr = 0.01}, {.shards = 5, .name = "one"});
      Trainer without(job, other, AdamW{.lr = 0.01}, {.shards = 5, .name = "other"});
      // Reached last: gradients of the others are written, or on their way.
      bool fails = false;
      net.table->weight.register_hook([&fails](const torch::Tensor& gradient) {
        if (fails) throw std::runtime_error("a bad batch");
        return gradient;
      });
      const auto step_of = [&](Trainer& one, Plain& model, bool bad) {
        return one.step([&](Shard& shard) {
          fails = bad && shard.index() == 3;
          return shard.loss(model.loss(shard.seed(), where, false), 1 + shard.index() % 2);
        });
      };
      for (int k = 0; k < 3; ++k) {
        if (k != 0) {
          EXPECT_THAT(text_of<std::exception>([&] { step_of(trainer, net, true); }),
                      HasSubstr(job.rank() == 1 ? "a bad batch" : "rank 1 failed"));
        }
        step_of(trainer, net, false);
        step_of(without, other, false);
        EXPECT_EQ(state_of(net), state_of(other)) << k;
      }
    });
  }
}

TEST(DeviceTrainer, OfTwoHostsHasTheBytesOfOne) {
  const auto straight = text_of_rank_0(1, [](const Job& job) {
    return trained_plain(job, torch::kCPU, torch::kFloat32, false, false);
  });
  for (const auto held : kProfiles) {
    const auto outcome = run_process_ranks(
        3,
        [&](const Job& job) {
          at::set_num_threads(1);
          test_device::register_device(2);
          test_device::hold(held);
          EXPECT_EQ(trained_plain(job, local_device(job), torch::kFloat32, false, false), straight);
        },
        {.hosts = even_hosts(3, 2)});
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

TEST(DeviceTrainer, AWorkerThatIsKilledInItsBackwardIsNamed) {
  for (const auto held : kProfiles) {
    const auto outcome = run_process_ranks(2, [&](const Job& job) {
      at::set_num_threads(1);
      test_device::register_device(2);
      test_device::hold(held);
      const auto where = local_device(job);
      Plain net;
      net.to(where);
      Trainer trainer(job, net, Adam{}, {.shards = 4});
      const auto loss_of = [&](Shard& shard) {
        return shard.loss(net.loss(shard.seed(), where, false));
      };
      EXPECT_TRUE(trainer.step(loss_of).applied);
      if (job.rank() == 1) {
        net.first->weight.register_hook([](const torch::Tensor& gradient) {
          std::raise(SIGKILL);
          return gradient;
        });
      }
      try {
        trainer.step(loss_of);
        ADD_FAILURE() << "a step without rank 1";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.rank(), 1);
      }
    });
    EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
    EXPECT_EQ(outcome.ranks[1].signal, SIGKILL) << outcome.describe();
  }
}

}  // namespace
}  // namespace tutti::test::device_trainer_cases
