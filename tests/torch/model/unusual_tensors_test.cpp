// Models with unusual parameters and buffers: frozen from the start, sharing memory, of types that
// are seldom trained.

#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::unusual_tensors_cases {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

struct FrozenImpl : torch::nn::Module {
  FrozenImpl() {
    in = register_module("in", torch::nn::Linear(6, 5));
    out = register_module("out", torch::nn::Linear(5, 3));
    fixed = register_parameter("fixed", torch::randn({5}), /*requires_grad=*/false);
  }
  torch::Tensor loss(const Batch& batch, std::int64_t begin, std::int64_t end) {
    const auto y = out(torch::tanh(in(batch.x.slice(0, begin, end))) * fixed);
    return torch::mse_loss(y, batch.y.slice(0, begin, end));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::Tensor fixed;
};
TORCH_MODULE(Frozen);

std::string train_frozen(int workers, bool with_trainer) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(3);
    Frozen model;
    const auto before = model->fixed.clone();
    const auto look = [&](std::uint64_t step) {
      EXPECT_EQ(torch::equal(model->fixed, before), step <= 2) << step;
      if (step == 2) model->fixed.requires_grad_(true);  // from now on it is trained
    };
    if (with_trainer) {
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3});
      for (std::uint64_t step = 1; step <= 4; ++step) {
        trainer.step([&](Shard& shard) {
          const auto at = 4 * shard.index();
          return shard.loss(model->loss(Batch(12, step), at, at + 4));
        });
        look(step);
      }
    } else {
      DataParallel parallel(job, *model);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (std::uint64_t step = 1; step <= 4; ++step) {
        optimizer.zero_grad();
        const auto [begin, end] = share_of(3, job.rank(), job.size());
        auto scope = parallel.accumulate({.micro_batches = end - begin});
        for (auto k = begin; k < end; ++k) {
          scope.micro_batch(1, [&] { return model->loss(Batch(12, step), 4 * k, 4 * k + 4); });
        }
        scope.finish();
        optimizer.step();
        look(step);
      }
    }
    return parameters_sha256(*model);
  });
}

TEST(UnusualTensors, AParameterRegisteredWithoutAGradientIsTakenByBothFrontEnds) {
  for (const bool with_trainer : {false, true}) {
    const auto alone = train_frozen(1, with_trainer);
    EXPECT_EQ(alone.size(), 64U);
    for (const int workers : {2, 3}) EXPECT_EQ(train_frozen(workers, with_trainer), alone);
  }
}

std::string refusal(const Job& job, torch::nn::Module& model) {
  return text_of<InvalidArgument>([&] { Trainer(job, model, Sgd{.lr = 0.1}, {.shards = 2}); });
}

// promise: trainer.h#Trainer
TEST(UnusualTensors, ParametersThatShareMemoryWouldBeUntiedAndAreRefused) {
  on_workers(2, [](const Job& job) {
    torch::nn::Sequential tied(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    auto weights = tied->parameters();
    weights[2].set_data(weights[0].data());
    EXPECT_THAT(refusal(job, *tied),
                AllOf(HasSubstr("parameter \"1.weight\" shares memory with \"0.weight\""),
                      HasSubstr("register one tensor under both names")));

    // A view of a part, and a buffer.
    torch::nn::Sequential part(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    part->named_parameters()["1.weight"].set_data(
        part->named_parameters()["0.weight"].data().select(0, 2));
    EXPECT_THAT(refusal(job, *part), HasSubstr("\"1.weight\" shares memory with \"0.weight\""));
    torch::nn::Sequential buffered(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    buffered->named_buffers()["1.running_mean"].set_data(
        buffered->named_parameters()["0.bias"].data());
    EXPECT_THAT(refusal(job, *buffered),
                AllOf(HasSubstr("\"1.running_mean\""), HasSubstr("\"0.bias\"")));
  });
}

TEST(UnusualTensors, OneTensorUnderTwoNamesAndNeighboursInOneBlockAreNoTrouble) {
  on_workers(2, [](const Job& job) {
    torch::nn::Sequential tied(torch::nn::Linear(6, 6));
    tied[0]->register_parameter("again", tied->parameters()[0]);
    EXPECT_EQ(refusal(job, *tied), "");
    torch::nn::Sequential flat(torch::nn::Linear(6, 3), torch::nn::Linear(6, 3));
    const auto block = torch::randn({42});
    std::int64_t at = 0;
    for (auto& parameter : flat->parameters()) {
      parameter.set_data(block.slice(0, at, at + parameter.numel()).view(parameter.sizes()));
      at += parameter.numel();
    }
    EXPECT_EQ(refusal(job, *flat), "");
  });
}

TEST(UnusualTensors, AnotherTensorInAParametersMemoryIsLeftBehindWithAWarning) {
  const LogCapture log;
  auto job = Job::join();
  auto model = mlp();
  {
    const auto view = model->parameters()[2].detach();
    const Trainer trainer(job, *model, Sgd{.lr = 0.1});
    EXPECT_THAT(log.lines(),
                Contains(AllOf(HasSubstr("warning: "), HasSubstr("parameter \"2.weight\""),
                               HasSubstr("another tensor"))));
  }
  const int warned = log.count("another tensor");
  const Trainer trainer(job, *model, Sgd{.lr = 0.1});
  EXPECT_EQ(log.count("another tensor"), warned);
}

// ---- what a checkpoint can hold ----

struct RotaryImpl : torch::nn::Module {
  RotaryImpl() {
    in = register_module("in", torch::nn::Linear(6, 3));
    const auto random = torch::randn({4, 3, 2});
    for (const auto type : {torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
      const auto name = std::string("unsigned_") + c10::toString(type);
      register_buffer(name, (random * 100).abs().to(torch::kInt64).to(type));
    }
    for (const auto type : {torch::kFloat8_e5m2, torch::kFloat8_e4m3fn}) {
      register_buffer(c10::toString(type), random.to(type));
    }
    register_buffer("freqs_cis", torch::view_as_complex(random.clone()));
  }
  torch::nn::Linear in{nullptr};
};
TORCH_MODULE(Rotary);

TEST(UnusualTensors, BuffersOfSeldomTypesComeBackFromACheckpoint) {
  for (const int workers : {1, 3}) {
    const TemporaryFolder folder;
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(1);
      std::string left;
      std::vector<torch::Tensor> buffers;
      for (int again = 0; again < 2; ++again) {
        Rotary model;  // the second time with other values
        Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3});
        const auto compute = [&](Shard& shard) {
          return shard.loss(model->in(torch::randn({4, 6})).square().mean());
        };
        if (again == 0) {
          trainer.step(compute);
          trainer.save(folder.file("run"));
          left = trainer.state_sha256();
        } else {
          EXPECT_NE(trainer.state_sha256(), left);
          EXPECT_EQ(trainer.load(folder.file("run")), 1);
          EXPECT_EQ(trainer.state_sha256(), left);
        }
        trainer.step(compute);
      }
    });
  }
}

// promise: trainer.h#Trainer
TEST(UnusualTensors, WhatACheckpointCannotHoldIsRefusedWhenTheTrainerIsMade) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    model->register_buffer("freqs_cis", torch::zeros({2, 3}, torch::kComplexDouble));
    EXPECT_THAT(text_of<Unsupported>([&] { Trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2}); }),
                AllOf(HasSubstr("buffer \"freqs_cis\""), HasSubstr("ComplexDouble"),
                      HasSubstr("checkpoint")));
    // And a state that a shard wants to carry on.
    auto plain = mlp();
    Trainer trainer(job, *plain, Sgd{.lr = 0.1}, {.shards = 1});
    const auto step = [&] {
      trainer.step([&](Shard& shard) {
        shard.state("z", [] { return torch::zeros({2}, torch::kComplexDouble); });
        return shard.nothing();
      });
    };
    EXPECT_THAT(text_of<Error>(step), AllOf(HasSubstr("\"z\""), HasSubstr("ComplexDouble")));
  });
}

}  // namespace
}  // namespace tutti::test::unusual_tensors_cases
