// What ends a step of a Trainer of a model on the test device, and what it refuses.

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "device_parallel/device_trainer_models.h"
#include "support/process_ranks.h"
#include "support/running_command.h"
#include "support/shared_between_processes.h"

namespace tutti::test::device_trainer_cases {
namespace {

using test_device::Held;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

// promise: gpu#a-trainer
TEST(DeviceTrainer, AGradientThatIsNotFiniteIsNamedByShardAndParameterAsOnTheCpu) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(3);
    Plain net;
    net.to(where);
    Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 6});
    std::string seen;
    for (int k = 0; k < 4; ++k) {
      const auto result = trainer.step([&](Shard& shard) {
        auto loss = net.loss(shard.seed(), where, false);
        const double bad = k == 2 ? std::numeric_limits<double>::quiet_NaN()
                                  : std::numeric_limits<double>::infinity();
        if (k > 0 && shard.index() == 4) loss = loss + (net.second->bias * bad).sum();
        // Its overflow is of the sum alone.
        if (k == 3) loss = net.second->bias.sum() * 1e38;
        return shard.loss(loss);
      });
      seen += result.dropped_because + '\n' + trainer.state_sha256();
    }
    EXPECT_THAT(seen, AllOf(HasSubstr("shard 4"), HasSubstr("\"second.bias\"")));
    return seen;
  });
}

// What a dropped step has on its way does not come to where the next one keeps its sums.
TEST(DeviceTrainer, AWorkerWithoutAGradientAfterADroppedStepKeepsGoodSums) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(3);
    Plain net;
    net.to(where);
    Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 6, .clip = {.norm = 0.1}});
    std::string seen;
    for (int k = 0; k < 6; ++k) {
      const bool fails = k % 2 == 0;
      const auto step = [&] {
        trainer.step([&](Shard& shard) {
          if (fails && shard.index() == 5) throw std::runtime_error("a bad batch");
          if (!fails && shard.index() > 0) return shard.nothing();
          return shard.loss(net.loss(shard.seed(), where, false));
        });
      };
      EXPECT_EQ(text_of<std::exception>(step).empty(), !fails);
      seen += trainer.state_sha256();
    }
    return seen;
  });
}

// promise: gpu#memory
TEST(DeviceTrainer, AShardWithoutRoomDropsTheStepAndSaysWhatTuttiHolds) {
  on_device_workers(2, Held::kDefaultStreams, [](const Job& job) {
    const auto where = local_device(job);
    Plain net;
    net.to(where);
    Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 4, .name = "faces"});
    const auto step = [&](bool fails) {
      trainer.step([&](Shard& shard) {
        if (fails && shard.index() == 3) {
          test_device::leave_memory(64);
          torch::zeros({1 << 14}, where);
        }
        return shard.loss(net.loss(shard.seed(), where, false));
      });
    };
    step(false);
    const auto text = text_of<Error>([&] { step(true); });
    if (job.rank() == 1) {
      EXPECT_THAT(text, AllOf(HasSubstr("shard 3 of Trainer \"faces\""),
                              HasSubstr("of gradients' sums: more shards")));
      test_device::leave_memory(std::size_t{1} << 40);
    } else {
      EXPECT_THAT(text, HasSubstr("rank 1"));
    }
    step(false);
    EXPECT_EQ(trainer.steps(), 2);
  });
}

// promise: gpu#memory
TEST(DeviceTrainer, WhatAStepOfAllParametersLacksIsSaidBeforeTheFirst) {
  on_device_workers(1, Held::kDefaultStreams, [](const Job& job) {
    const auto where = local_device(job);
    Plain net;
    net.to(where);
    const auto warnings = [&](std::size_t left) {
      test_device::leave_memory(left);
      const LogCapture log;
      const Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 8, .name = "faces"});
      return log.count("trainer \"faces\": a step that touches all parameters needs ");
    };
    EXPECT_EQ(warnings(std::size_t{1} << 20), 0);
    EXPECT_EQ(warnings(64), 1);
    test_device::leave_memory(std::size_t{1} << 40);
  });
}

/// torch's, and it dies when it is told to.
struct Mortal : torch::optim::SGD {
  using SGD::SGD;
  static inline std::function<bool()> dies = [] { return false; };
  torch::Tensor step(LossClosure closure = nullptr) override {
    if (dies()) std::raise(SIGKILL);
    return SGD::step(std::move(closure));
  }
};

/// Steps from..to, those before from the checkpoint in `folder`; in the last one rank `dead` dies
/// while it updates its tiles.
std::string of_a_mortal(const Job& job, c10::Device where, const std::string& folder, int from,
                        int to, int dead) {
  torch::manual_seed(3);
  Plain net;
  net.to(where);
  Trainer trainer(job, net, torch_optimizer<Mortal>(torch::optim::SGDOptions(0.1).momentum(0.9)),
                  {.shards = 5});
  if (from > 1) {
    EXPECT_EQ(trainer.load(folder), from - 1);
  }
  for (int k = from; k <= to; ++k) {
    Mortal::dies = [is_last = k == to && job.rank() == dead] { return is_last; };
    trainer.step([&](Shard& shard) { return shard.loss(net.loss(shard.seed(), where, false)); });
    if (!folder.empty() && k + 1 == to) trainer.save(folder);
  }
  return trainer.state_sha256() + state_of(net);
}

// promise: gpu#a-trainer
TEST(DeviceTrainer, AWorkerThatIsKilledInItsUpdateIsNamedAndTheRunGoesOn) {
  const auto straight =
      text_of_rank_0(1, [](const Job& job) { return of_a_mortal(job, torch::kCPU, "", 1, 5, -1); });
  for (const auto held : kProfiles) {
    const TemporaryFolder folder;
    const auto run = folder.file("run");
    const auto outcome = outcome_of_device_workers(3, held, [&](const Job& job) {
      try {
        of_a_mortal(job, local_device(job), run, 1, 4, 1);
        ADD_FAILURE() << "a step without rank 1";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.rank(), 1);
      }
    });
    EXPECT_EQ(outcome.ranks[1].signal, SIGKILL) << outcome.describe();
    EXPECT_TRUE(outcome.ranks[0].good() && outcome.ranks[2].good()) << outcome.describe();
    EXPECT_EQ(text_on_device_rank_0(2, held,
                                    [&](const Job& job) {
                                      return of_a_mortal(job, local_device(job), run, 4, 5, -1);
                                    }),
              straight);
  }
}

/// A model of two buckets: values of the first return while the second's are updated.
struct Large : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(4, 70000))};
  nn::Linear second{register_module("second", nn::Linear(70000, 4))};
};

/// How often each of two workers has updated a part of a parameter.
using Updates = std::array<std::atomic<int>, 2>;

/// Steps from..to of two workers, those before from of the checkpoint in `folder`. With `updates`,
/// rank 1 dies in the last one, when values of it have come to its device.
std::string of_a_large_mortal(const Job& job, c10::Device where, const std::string& folder,
                              int from, int to, Updates* updates) {
  torch::manual_seed(3);
  Large net;
  net.to(where);
  Trainer trainer(job, net, torch_optimizer<Mortal>(torch::optim::SGDOptions(1e-3).momentum(0.9)),
                  {.shards = 4});
  if (from > 1) {
    EXPECT_EQ(trainer.load(folder), from - 1);
  }
  for (int k = from; k <= to; ++k) {
    const auto first_bucket = [&] { return bytes_of(net.second->weight); };
    const auto before = first_bucket();
    const int each_step = updates == nullptr ? 0 : updates->at(0) / std::max(1, k - from);
    Mortal::dies = [&, k] {
      if (updates == nullptr) return false;
      ++updates->at(static_cast<std::size_t>(job.rank()));
      if (k != to || job.rank() != 1) return false;
      // Rank 0 waits for nobody before it has updated all of its own.
      comes_true([&] { return updates->at(0) >= each_step * (k - from + 1); });
      return first_bucket() != before;
    };
    trainer.step([&](Shard& shard) {
      const auto x = torch::full({2, 4}, 0.1 * static_cast<double>(shard.index() + 1), where);
      return shard.loss(net.second(net.first(x)).square().mean());
    });
    if (!folder.empty() && k + 1 == to) trainer.save(folder);
  }
  return trainer.state_sha256();
}

// promise: gpu#a-trainer
TEST(DeviceTrainer, AWorkerThatIsKilledWhileParametersReturnIsNamedAndTheRunGoesOn) {
  const auto straight = text_on_device_rank_0(1, Held::kSideStreams, [](const Job& job) {
    return of_a_large_mortal(job, local_device(job), "", 1, 4, nullptr);
  });
  for (const auto held : kProfiles) {
    const SharedBetweenProcesses<Updates> updates;
    const TemporaryFolder folder;
    const auto run = folder.file("run");
    const auto outcome = outcome_of_device_workers(2, held, [&](const Job& job) {
      try {
        of_a_large_mortal(job, local_device(job), run, 1, 3, updates.get());
        ADD_FAILURE() << "a step without rank 1";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.rank(), 1);
      }
    });
    EXPECT_EQ(outcome.ranks[1].signal, SIGKILL) << outcome.describe();
    EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
    EXPECT_LT(updates->at(1), updates->at(0)) << "in the midst of its update";
    EXPECT_EQ(text_on_device_rank_0(1, held,
                                    [&](const Job& job) {
                                      return of_a_large_mortal(job, local_device(job), run, 3, 4,
                                                               nullptr);
                                    }),
              straight);
  }
}

TEST(DeviceTrainer, AWorkerThatIsKilledInItsBackwardIsNamed) {
  for (const auto held : kProfiles) {
    const auto outcome = outcome_of_device_workers(2, held, [&](const Job& job) {
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
