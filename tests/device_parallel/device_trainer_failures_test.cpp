// What ends a step of a Trainer of a model on the test device, and what it refuses.

#include <csignal>
#include <stdexcept>
#include <string>

#include "device_parallel/device_trainer_models.h"
#include "support/process_ranks.h"

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
