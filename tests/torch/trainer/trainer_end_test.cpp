// What a Trainer leaves behind when it ends: each worker's model in memory of its own.

#include <optional>
#include <stdexcept>

#include "torch/training.h"

namespace tutti::test::trainer_end_cases {
namespace {

using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(torch::ScalarType type = torch::kFloat32) {
    in = register_module("in", torch::nn::Linear(6, 17));
    norm = register_module("norm", torch::nn::BatchNorm1d(17));
    out = register_module("out", torch::nn::Linear(17, 3));
    // Of other strides, and with nothing in it.
    turned = register_parameter("turned", torch::randn({3, 5}).t());
    empty = register_parameter("empty", torch::zeros({0, 4}));
    to(type);
  }
  torch::Tensor loss(const Batch& batch, std::int64_t begin, std::int64_t end) {
    const auto type = in->weight.scalar_type();
    const auto y = out(torch::tanh(norm(in(batch.x.slice(0, begin, end).to(type)))));
    return torch::mse_loss(y, batch.y.slice(0, begin, end).to(type)) + turned.square().mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor turned, empty;
};
TORCH_MODULE(Net);

ShardAnswer loss_of(Shard& shard, Net& net, const Batch& batch) {
  const auto [begin, end] = share_of(batch.x.size(0), shard.index(), shard.count());
  return shard.loss(net->loss(batch, begin, end), static_cast<double>(end - begin));
}

std::vector<torch::Tensor> copies_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

/// Writes its own to every parameter while the others do the same, and finds nothing else there.
void expect_own_memory(const Job& job, const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const Group group(job, "look");
  const auto before = copies_of(module);
  group.barrier();
  const auto parameters = module.parameters();
  for (const auto& parameter : parameters) parameter.add_(job.rank() + 1);
  group.barrier();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_TRUE(torch::equal(parameters[p], before[p] + (job.rank() + 1)));
    EXPECT_EQ(parameters[p].strides(), before[p].strides());
  }
}

// promise: trainer.h#Trainer
TEST(TrainerEnd, EachWorkerGoesOnWithParametersOfItsOwn) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const int workers : {1, 2, 3}) {
      on_workers(workers, [&](const Job& job) {
        torch::manual_seed(3);
        Net net(type);
        const auto weight = net->in->weight;  // handles of the program follow
        std::string left;
        {
          Trainer trainer(job, *net, Adam{.lr = 0.1}, {.shards = 3});
          for (std::uint64_t step = 1; step <= 3; ++step) {
            trainer.step([&](Shard& shard) { return loss_of(shard, net, Batch(12, step)); });
          }
          left = parameters_sha256(*net);
        }
        EXPECT_EQ(parameters_sha256(*net), left);
        expect_own_memory(job, *net);
        EXPECT_TRUE(torch::equal(weight, net->in->weight));
      });
    }
  }
}

TEST(TrainerEnd, AMovedOneEndsWithTheOneItWasMovedTo) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(3);
    Net net;
    {
      std::optional<Trainer> last;
      {
        Trainer first(job, *net, Adam{.lr = 0.1}, {.shards = 2});
        last.emplace(std::move(first));
      }
      const auto result =
          last->step([&](Shard& shard) { return loss_of(shard, net, Batch(12, 1)); });
      EXPECT_TRUE(result.applied);
      expect_equal_everywhere(last->group(), *net);
    }
    expect_own_memory(job, *net);
  });
}

TEST(TrainerEnd, AnExceptionThatEndsItLeavesTheLastStepsValues) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(3);
    Net net;
    std::string left;
    EXPECT_EQ(text_of<std::exception>([&] {
                Trainer trainer(job, *net, Adam{.lr = 0.1}, {.shards = 3});
                trainer.step([&](Shard& shard) { return loss_of(shard, net, Batch(12, 1)); });
                left = parameters_sha256(*net);
                try {
                  trainer.step([&](Shard& shard) {
                    if (shard.index() == 1) throw std::runtime_error("no more");
                    return loss_of(shard, net, Batch(12, 2));
                  });
                } catch (const PeerFailed&) {
                  throw std::runtime_error("no more");
                }
              }),
              "no more");
    EXPECT_EQ(parameters_sha256(*net), left);
    expect_own_memory(job, *net);
  });
}

TEST(TrainerEnd, PrivateParametersBecomeTheFirstLogicalWorkers) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      torch::Tensor first;
      {
        Trainer trainer(
            job, *model, Adam{.lr = 0.1},
            {.shards = 3, .logical_workers = 3, .per_replica = [](const std::string& name) {
               return name == "0.weight";
             }});
        for (std::uint64_t step = 1; step <= 2; ++step) {
          trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(12, step)); });
        }
        const auto all = trainer.gather("0.weight");
        EXPECT_FALSE(torch::equal(all[0], all[1]));
        first = all[0].clone();
      }
      EXPECT_TRUE(torch::equal(model->parameters()[0], first));
      expect_own_memory(job, *model);
    });
  }
}

/// Three micro-batches a step, whoever computes them.
void train_parallel(const Job& job, Net& net, std::uint64_t first) {
  DataParallel parallel(job, *net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (auto step = first; step < first + 5; ++step) {
    const Batch batch(12, step);
    optimizer.zero_grad();
    const auto [begin, end] = share_of(3, job.rank(), job.size());
    auto scope = parallel.accumulate({.micro_batches = end - begin});
    for (auto k = begin; k < end; ++k) {
      scope.micro_batch(1, [&] { return net->loss(batch, 4 * k, 4 * k + 4); });
    }
    scope.finish();
    optimizer.step();
  }
}

std::string phases(int workers) {
  return text_of_rank_0(workers, [](const Job& job) {
    torch::manual_seed(3);
    Net net;
    net->norm->eval();
    std::string hashes;
    const auto phase = [&](std::uint64_t first) {
      Trainer trainer(job, *net, Adam{.lr = 0.01}, {.shards = 3});
      for (auto step = first; step < first + 3; ++step) {
        trainer.step([&](Shard& shard) { return loss_of(shard, net, Batch(12, step)); });
      }
    };
    for (std::uint64_t round = 0; round < 2; ++round) {
      phase(100 * round);
      hashes += parameters_sha256(*net);
      train_parallel(job, net, 100 * round + 50);
      hashes += parameters_sha256(*net);
      expect_equal_everywhere(Group(job, "look"), *net);
    }
    return hashes;
  });
}

TEST(TrainerEnd, ThenADataParallelThenATrainerComeToTheSameBytesOnAnyNumberOfWorkers) {
  const auto alone = phases(1);
  EXPECT_EQ(alone.size(), 4 * 64U);
  for (const int workers : {2, 3}) EXPECT_EQ(phases(workers), alone) << workers;
}

TEST(TrainerEnd, ASecondOneThatIsRefusedLeavesTheFirstUsable) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    EXPECT_THAT(text_of<InvalidArgument>([&] { Trainer(job, *model, Sgd{}, {.name = "second"}); }),
                HasSubstr("parameter \"0.weight\" is wrapped by a DataParallel or a Trainer"));
    const auto result =
        trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
    EXPECT_TRUE(result.applied);
  });
}

TEST(TrainerEnd, GradientsOfAnEarlierBackwardAreLetGoAndThoseSetByHandAreNamed) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(3);
    auto model = mlp();
    Batch(12, 1).loss(model, 0, 12).backward();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const auto step = [&] {
      return trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
    };
    EXPECT_TRUE(step().applied);
    auto weight = model->parameters()[2];
    weight.mutable_grad() = torch::ones_like(weight);
    EXPECT_THAT(text_of<Error>([&] { step(); }),
                HasSubstr("parameter \"2.weight\" of Trainer \"model\" holds a gradient"));
    model->zero_grad();
    EXPECT_TRUE(step().applied);
  });
}

}  // namespace
}  // namespace tutti::test::trainer_end_cases
