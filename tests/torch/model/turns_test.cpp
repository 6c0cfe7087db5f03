// Models that take turns in one Trainer: a step of one leaves the others' parameters alone.

#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::turns_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A generator and a discriminator, both with running statistics.
struct Pair {
  explicit Pair(bool dropout = true) {
    torch::manual_seed(3);
    generator = torch::nn::Sequential(torch::nn::Linear(4, 9), torch::nn::BatchNorm1d(9),
                                      torch::nn::Linear(9, 6));
    discriminator = torch::nn::Sequential(torch::nn::Linear(6, 11), torch::nn::BatchNorm1d(11),
                                          torch::nn::Tanh(), torch::nn::Dropout(dropout ? 0.3 : 0),
                                          torch::nn::Linear(11, 1), torch::nn::Sigmoid());
    both->update({{"generator", generator.ptr()}, {"discriminator", discriminator.ptr()}});
  }
  torch::Tensor judge(const torch::Tensor& x, double label) {
    const auto scores = discriminator->forward(x);
    return torch::binary_cross_entropy(scores, torch::full_like(scores, label));
  }
  torch::Tensor discriminators_loss(const torch::Tensor& real, const torch::Tensor& noise) {
    return judge(real, 1) + judge(generator->forward(noise).detach(), 0);
  }
  torch::Tensor generators_loss(const torch::Tensor& noise) {
    return judge(generator->forward(noise), 1);
  }
  torch::nn::Sequential generator{nullptr}, discriminator{nullptr};
  torch::nn::ModuleDict both;
};

torch::Tensor draw(std::uint64_t seed, std::int64_t width) {
  return torch::randn({5, width}, at::make_generator<at::CPUGeneratorImpl>(seed));
}

Optimizer two_optimizers() {
  Optimizer optimizer(AdamW{.lr = 1e-2, .weight_decay = 0.1});
  return optimizer.group([](const std::string& name) { return name.starts_with("discriminator."); },
                         Sgd{.lr = 3e-2, .momentum = 0.9, .weight_decay = 0.1});
}

StepResult discriminators_turn(Trainer& trainer, Pair& pair) {
  return trainer.step(*pair.discriminator, [&](Shard& shard) {
    return shard.loss(
        pair.discriminators_loss(draw(shard.seed(), 6) + 1, draw(shard.seed() + 1, 4)));
  });
}
StepResult generators_turn(Trainer& trainer, Pair& pair) {
  return trainer.step(*pair.generator, [&](Shard& shard) {
    return shard.loss(pair.generators_loss(draw(shard.seed(), 4)));
  });
}

/// The bytes of a module's buffers.
std::string buffers_of(const torch::nn::Module& module) {
  std::string bytes;
  for (const auto& buffer : module.buffers()) {
    const auto host = buffer.cpu();
    bytes.append(static_cast<const char*>(host.data_ptr()), host.nbytes());
  }
  return bytes;
}

void expect_same_bytes(TrainerOptions options) {
  options.shards = 4;
  options.seed = 5;
  options.desync_check_every = options.audit_every = 1;
  std::set<std::string> results;
  for (const int workers : {1, 2, 3, 5}) {
    results.insert(text_of_rank_0(workers, [&](const Job& job) {
      Pair pair;
      Trainer trainer(job, *pair.both, two_optimizers(), options);
      for (int turn = 0; turn < 4; ++turn) {
        EXPECT_TRUE(discriminators_turn(trainer, pair).applied);
        EXPECT_TRUE(generators_turn(trainer, pair).applied);
      }
      return trainer.state_sha256();
    }));
  }
  EXPECT_EQ(results.size(), 1U);
}

TEST(Turns, EndWithTheSameBytesOnAnyNumberOfWorkers) { expect_same_bytes({}); }

TEST(Turns, GoWithClipsCodecsAndPolicies) {
  expect_same_bytes({.clip = {.norm = 0.05}, .loss_scale = dynamic_loss_scale(), .ema_decay = 0.9});
  expect_same_bytes({.compression = {.codec = top_k_codec(0.2)}, .logical_workers = 2});
  expect_same_bytes({.logical_workers = 2, .averaging = local_sgd(3, 1)});
  expect_same_bytes({.logical_workers = 2, .per_replica = [](const std::string& name) {
                       return name.ends_with("bias") || name.ends_with("running_mean");
                     }});
}

// promise: trainer.h#step
TEST(Turns, OfOneShardAreThoseOfALoopOfLibtorch) {
  on_workers(1, [](const Job& job) {
    const auto generators = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
    const auto discriminators = torch::optim::SGDOptions(3e-2).momentum(0.9).weight_decay(0.1);
    Pair plain(/*dropout=*/false);
    torch::optim::AdamW generator_optimizer(plain.generator->parameters(), generators);
    torch::optim::SGD discriminator_optimizer(plain.discriminator->parameters(), discriminators);

    Pair pair(/*dropout=*/false);
    Optimizer optimizer(torch_optimizer<torch::optim::AdamW>(generators));
    optimizer.group([](const std::string& name) { return name.starts_with("discriminator."); },
                    torch_optimizer<torch::optim::SGD>(discriminators));
    Trainer trainer(job, *pair.both, optimizer);
    for (std::uint64_t turn = 0; turn < 5; ++turn) {
      const auto real = draw(turn, 6) + 1, noise = draw(turn + 100, 4), other = draw(turn + 200, 4);
      plain.discriminator->zero_grad();
      plain.discriminators_loss(real, noise).backward();
      discriminator_optimizer.step();
      plain.generator->zero_grad();
      plain.generators_loss(other).backward();
      generator_optimizer.step();
      trainer.step(*pair.discriminator,
                   [&](Shard& shard) { return shard.loss(pair.discriminators_loss(real, noise)); });
      trainer.step(*pair.generator,
                   [&](Shard& shard) { return shard.loss(pair.generators_loss(other)); });
      EXPECT_EQ(parameters_sha256(*pair.both), parameters_sha256(*plain.both)) << turn;
      // Each forward moves the statistics of the models that it runs through, of either.
      EXPECT_EQ(buffers_of(*pair.both), buffers_of(*plain.both)) << turn;
    }
  });
}

// promise: trainer.h#step
TEST(Turns, LeaveTheOthersParametersAndTheirStateAlone) {
  on_workers(2, [](const Job& job) {
    Pair pair;
    Trainer trainer(job, *pair.both, two_optimizers(), {.shards = 3, .seed = 5});
    discriminators_turn(trainer, pair);
    generators_turn(trainer, pair);
    const auto passive = parameters_sha256(*pair.discriminator);
    const auto active = parameters_sha256(*pair.generator);
    const auto statistics = buffers_of(*pair.discriminator);
    trainer.accumulate([&](Shard& shard) {  // the model's own list says what is frozen
      for (const auto& parameter : pair.both->parameters()) EXPECT_TRUE(parameter.requires_grad());
      return shard.loss(pair.generators_loss(draw(shard.seed(), 4)));
    });
    EXPECT_TRUE(trainer.gradient("discriminator.0.weight").defined());
    trainer.apply();
    EXPECT_NE(parameters_sha256(*pair.discriminator), passive);  // without turns it moves

    const auto before = parameters_sha256(*pair.discriminator);
    const auto result = trainer.step(*pair.generator, [&](Shard& shard) {
      for (const auto& parameter : pair.discriminator->parameters()) {
        EXPECT_FALSE(parameter.requires_grad());
      }
      return shard.loss(pair.generators_loss(draw(shard.seed(), 4)));
    });
    EXPECT_TRUE(result.applied);
    EXPECT_EQ(parameters_sha256(*pair.discriminator), before);
    EXPECT_NE(parameters_sha256(*pair.generator), active);
    EXPECT_NE(buffers_of(*pair.discriminator), statistics);
    for (const auto& parameter : pair.both->parameters()) EXPECT_TRUE(parameter.requires_grad());
    expect_equal_everywhere(trainer.group(), *pair.both);
  });
}

TEST(Turns, WhatWasFrozenBeforeStaysSoAndTheRestComesBackAfterAnException) {
  on_workers(2, [](const Job& job) {
    Pair pair;
    Trainer trainer(job, *pair.both, two_optimizers(), {.shards = 2, .seed = 5});
    pair.discriminator->parameters()[0].requires_grad_(false);
    EXPECT_ANY_THROW(trainer.step(*pair.generator, [&](Shard& shard) -> ShardAnswer {
      if (shard.index() == 1) throw std::domain_error("no");
      return shard.nothing();
    }));
    const auto parameters = pair.both->parameters();
    const auto frozen = std::count_if(parameters.begin(), parameters.end(),
                                      [](const auto& one) { return !one.requires_grad(); });
    EXPECT_EQ(frozen, 1);
    EXPECT_FALSE(pair.discriminator->parameters()[0].requires_grad());
    EXPECT_TRUE(generators_turn(trainer, pair).applied);
    EXPECT_TRUE(discriminators_turn(trainer, pair).applied);
  });
}

/// One turn of each of two models under a DataParallel of their own.
void take_turns(Pair& pair, torch::optim::Optimizer& generators,
                torch::optim::Optimizer& discriminators, const torch::Tensor& real,
                const torch::Tensor& noise) {
  discriminators.zero_grad();
  pair.discriminators_loss(real, noise).backward();  // of real and made ones together: one sync
  discriminators.step();

  for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(false);
  generators.zero_grad();
  pair.generators_loss(noise).backward();
  generators.step();
  for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(true);
}

TEST(Turns, OfTwoDataParallelsFreezeTheOther) {
  const auto train = [](Pair& pair, const Job& job) {
    auto generators = momentum_and_decay(pair.generator->parameters());
    auto discriminators = momentum_and_decay(pair.discriminator->parameters());
    for (std::uint64_t turn = 0; turn < 4; ++turn) {
      const auto worker = static_cast<std::uint64_t>(job.rank());
      take_turns(pair, generators, discriminators, draw(turn + 50 * worker, 6) + 1,
                 draw(turn + 100 + 50 * worker, 4));
    }
  };
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      Pair pair(/*dropout=*/false);
      here(*pair.both);
      DataParallel of_generator(job, *pair.generator, {.name = "generator"});
      DataParallel of_discriminator(job, *pair.discriminator, {.name = "discriminator"});
      train(pair, job);
      expect_equal_everywhere(of_generator.group(), *pair.both);
      EXPECT_EQ(of_generator.report().step, 4);
      EXPECT_EQ(of_discriminator.report().step, 4);  // no exchange in the generator's turn
      if (workers > 1) return;
      Pair plain(/*dropout=*/false);
      train(plain, job);
      EXPECT_EQ(parameters_sha256(*pair.both), parameters_sha256(*plain.both));
      EXPECT_EQ(buffers_of(*pair.both), buffers_of(*plain.both));
    });
  }
}

// promise: trainer.h#step
TEST(Turns, WorkersThatTakeDifferentTurnsAreTold) {
  on_workers(3, [](const Job& job) {
    Pair pair;
    Trainer trainer(job, *pair.both, two_optimizers(), {.shards = 2, .seed = 5, .name = "gan"});
    discriminators_turn(trainer, pair);
    const auto before = trainer.state_sha256();
    const auto text = text_of<InvalidArgument>([&] {
      job.rank() == 2 ? discriminators_turn(trainer, pair) : generators_turn(trainer, pair);
    });
    EXPECT_THAT(text, AllOf(HasSubstr("step 2 of \"gan\": rank 0 and rank 2 give step() different "
                                      "models to train")));
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_TRUE(generators_turn(trainer, pair).applied);
  });
}

TEST(Turns, AGradientByHandOfTheOtherModelIsRefused) {
  on_workers(2, [](const Job& job) {
    Pair pair;
    Trainer trainer(job, *pair.both, two_optimizers(), {.shards = 2});
    const auto before = trainer.state_sha256();
    const auto step = [&](bool all) {
      return trainer.step(*pair.generator, [&](Shard& shard) {
        std::vector<torch::Tensor> gradients;
        for (const auto& parameter : pair.both->parameters()) {
          const bool wanted = all || parameter.requires_grad();
          gradients.push_back(wanted ? torch::ones_like(parameter).detach() : torch::Tensor());
        }
        return shard.gradients(gradients);
      });
    };
    EXPECT_THAT(text_of<Error>([&] { step(true); }),
                AllOf(HasSubstr("a gradient of \"discriminator.0.weight\""),
                      HasSubstr("which this step is not about")));
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_TRUE(step(false).applied);
  });
}

// A closure that sets requires_grad back trained both models in one's turn.
TEST(Turns, AClosureThatThawsTheOtherModelIsRefused) {
  on_workers(2, [](const Job& job) {
    Pair pair;
    Trainer trainer(job, *pair.both, two_optimizers(), {.shards = 2});
    const auto before = trainer.state_sha256();
    const auto text = text_of<Error>([&] {
      trainer.step(*pair.generator, [&](Shard& shard) {
        for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(true);
        torch::Tensor sum = torch::zeros({});
        for (auto& parameter : pair.both->parameters()) sum = sum + parameter.square().sum();
        return shard.loss(sum);
      });
    });
    EXPECT_THAT(text, HasSubstr("which this step is not about"));
    EXPECT_EQ(trainer.state_sha256(), before);
  });
}

/// Trains to `until` in rounds of two discriminator's turns and one of the generator, from `folder`
/// on; begins a round anew after a load(), unless turns are chosen by steps. Warnings of rank 0.
std::string warnings_of_rounds(const std::string& folder, int workers, std::int64_t until,
                               bool by_steps) {
  return text_of_rank_0(workers, [&](const Job& job) {
    const LogCapture log;
    Pair pair;
    Trainer trainer(job, *pair.both, two_optimizers(), {.shards = 2, .seed = 5, .name = "gan"});
    const auto from = trainer.load(folder).value_or(0);
    for (auto step = from; step < until; ++step) {
      const auto turn = by_steps ? step : step - from;
      turn % 3 == 2 ? generators_turn(trainer, pair) : discriminators_turn(trainer, pair);
    }
    trainer.save(folder);
    std::string warnings;
    for (const auto& line : log.lines()) {
      if (line.starts_with("warning: ")) warnings += line + "\n";
    }
    return warnings;
  });
}

// A run that was saved between two turns began with the first one again, and nobody said so.
TEST(Turns, AfterALoadInsideARoundTheWrongOneIsWarnedOf) {
  const TemporaryFolder folder;
  EXPECT_EQ(warnings_of_rounds(folder.file("inside"), 2, 8, false), "");
  const auto warnings = warnings_of_rounds(folder.file("inside"), 3, 20, false);
  EXPECT_THAT(
      warnings,
      AllOf(HasSubstr("step 9 of \"gan\", the first one after load(), is about the model of "
                      "\"discriminator.0.weight\"; in the rounds of 3 turns before the "
                      "checkpoint another turn comes here"),
            HasSubstr("save after the last turn of a round")));
  EXPECT_EQ(warnings.find("the first one after load()"),
            warnings.rfind("the first one after load()"));
}

TEST(Turns, AfterALoadTheRightOneIsNotWarnedOf) {
  const TemporaryFolder folder;
  for (const bool by_steps : {false, true}) {
    for (const std::int64_t stop : {1, 2, 3, 6, 7, 8, 9}) {
      if (!by_steps && stop > 3 && stop % 3 != 0) continue;
      const auto name = folder.file(std::to_string(stop) + (by_steps ? "s" : ""));
      EXPECT_EQ(warnings_of_rounds(name, 2, stop, by_steps), "") << stop;
      EXPECT_EQ(warnings_of_rounds(name, 1, stop + 7, by_steps), "") << stop;
    }
  }
}

// promise: trainer.h#step
TEST(Turns, OfAModelThatIsNotTheTrainersAreRefused) {
  on_workers(2, [](const Job& job) {
    Pair pair;
    Trainer trainer(job, *pair.generator, Adam{}, {.shards = 2, .name = "gan"});
    EXPECT_THAT(text_of<InvalidArgument>([&] { discriminators_turn(trainer, pair); }),
                AllOf(HasSubstr("step() of \"gan\" for module"),
                      HasSubstr("has parameters that are not this Trainer's: make the Trainer of a "
                                "module that registers all")));
    torch::nn::Tanh empty;
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { trainer.step(*empty, [](Shard& shard) { return shard.nothing(); }); }),
                HasSubstr("which has no parameters"));
    for (const auto& parameter : pair.both->parameters()) EXPECT_TRUE(parameter.requires_grad());
  });
}

}  // namespace
}  // namespace tutti::test::turns_cases
