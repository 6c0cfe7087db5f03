// Per-replica parameters and averaging policies in a Trainer: each logical worker's copy is what a
// Trainer of its own would have made of it, and where copies become one, all are the same bytes.

#include <limits>
#include <memory>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::averaging_cases {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two layers, of which the first is not touched by every shard.
struct TwoPartsImpl : torch::nn::Module {
  TwoPartsImpl()
      : body(register_module("body", torch::nn::Linear(6, 700))),
        norm(register_module("norm", torch::nn::BatchNorm1d(700))),
        head(register_module("head", torch::nn::Linear(700, 5))) {}
  torch::Tensor loss(std::int64_t step, std::int64_t shard) {
    const auto x = torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(
                                            static_cast<std::uint64_t>(step * 100 + shard)));
    if ((step + shard) % 4 == 3) return head->bias.square().sum();
    return head->forward(norm->forward(torch::tanh(body->forward(x)))).square().mean();
  }
  torch::nn::Linear body;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear head;
};
TORCH_MODULE(TwoParts);

TwoParts two_parts() {
  torch::manual_seed(11);
  return TwoParts();
}

double weight_of(std::int64_t shard) { return static_cast<double>(1 + shard % 3); }

/// Its buckets are never due: copies are never averaged.
class Never : public AveragingPolicy {
 public:
  std::string name() const override { return "never"; }
  bool due(std::int64_t, std::int64_t, std::int64_t) const override { return false; }
};

constexpr std::int64_t kShards = 5;
/// Of 3 logical workers.
constexpr std::pair<std::int64_t, std::int64_t> kLogical[] = {{0, 2}, {2, 4}, {4, 5}};

struct Given {
  Optimizer optimizer = Adam{.lr = 0.05, .weight_decay = 0.1};
  Clip clip = {};
  LossScale loss_scale = {};
};

StepResult step_of(Trainer& trainer, TwoParts& model, std::int64_t first_shard = 0) {
  const auto result = trainer.step([&](Shard& shard) {
    const auto s = first_shard + shard.index();
    return shard.loss(model->loss(shard.step(), s), weight_of(s));
  });
  EXPECT_TRUE(result.applied) << result.dropped_because;
  EXPECT_TRUE(result.dropped_locally.empty());
  return result;
}

/// A logical worker's shards as a run of their own.
struct Alone {
  Alone(const Job& job, const Given& given, std::int64_t begin, std::int64_t end)
      : first(begin),
        model(two_parts()),
        trainer(job, *model, given.optimizer,
                {.shards = end - begin, .clip = given.clip, .loss_scale = given.loss_scale}) {}
  std::int64_t first;
  TwoParts model;
  Trainer trainer;
};

std::string bytes_of(const torch::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  return {static_cast<const char*>(flat.data_ptr()), flat.nbytes()};
}

/// Every logical worker's parameters are those of its own run.
void expect_as_alone(Trainer& together, TwoParts& model,
                     const std::vector<std::unique_ptr<Alone>>& alone, const std::string& what) {
  for (std::size_t l = 0; l < alone.size(); ++l) {
    for (const auto& item : alone[l]->model->named_parameters()) {
      const auto all = together.gather(item.key());
      ASSERT_EQ(all.size(0), static_cast<std::int64_t>(alone.size()));
      EXPECT_EQ(bytes_of(all[static_cast<std::int64_t>(l)]), bytes_of(item.value()))
          << what << ", " << item.key() << ", logical worker " << l;
    }
    together.with_logical_worker(static_cast<std::int64_t>(l), [&] {
      for (const auto& item : alone[l]->model->named_buffers()) {
        EXPECT_EQ(bytes_of(model->named_buffers()[item.key()]), bytes_of(item.value()))
            << what << ", " << item.key() << ", logical worker " << l;
      }
    });
  }
}

// promise: averaging.h#AveragingRound, trainer.h#gradient_norm, trainer_options.h#per_replica
TEST(AveragingPolicy, LogicalWorkersThatNeverMeetTrainAsIfAlone) {
  const std::vector<Given> cases = {
      {},
      {.optimizer = Sgd{.lr = 1e-3, .momentum = 0.9, .nesterov = true}, .clip = {.norm = 0.05}},
      {.optimizer = Adagrad{.lr = 0.1, .initial_sum = 0.1},
       .clip = {.parameter_norm = 0.02, .value = 1e-3},
       .loss_scale = {.start = 64}}};
  for (const int workers : {1, 2, 3, 5}) {
    on_workers(workers, [&](const Job& job) {
      for (std::size_t k = 0; k < cases.size(); ++k) {
        auto model = two_parts();
        Trainer trainer(job, *model, cases[k].optimizer,
                        {.shards = kShards,
                         .clip = cases[k].clip,
                         .loss_scale = cases[k].loss_scale,
                         .logical_workers = 3,
                         .averaging = std::make_shared<Never>()});
        std::vector<std::unique_ptr<Alone>> alone;
        for (const auto& [begin, end] : kLogical) {
          alone.push_back(std::make_unique<Alone>(job, cases[k], begin, end));
        }
        for (int step = 0; step < 5; ++step) {
          double squares = 0;
          for (const auto& one : alone) {
            const auto norm = step_of(one->trainer, one->model, one->first).gradient_norm;
            squares += norm.value_or(0) * norm.value_or(0);
          }
          const auto result = step_of(trainer, model);
          if (result.gradient_norm) {
            EXPECT_DOUBLE_EQ(*result.gradient_norm, std::sqrt(squares));
          }
        }
        expect_as_alone(trainer, model, alone, "case " + std::to_string(k));
      }
    });
  }
}

/// Along the tree over three.
torch::Tensor mean_of(const std::vector<torch::Tensor>& copies) {
  return ((copies[0] + copies[1]) + copies[2]) / 3;
}

// promise: averaging.h#AveragingRound, averaging.h#overlap, trainer_options.h#averaging
TEST(AveragingPolicy, LocalSgdMeetsEveryKStepsAfterItsWarmUp) {
  for (const int workers : {1, 2, 5}) {
    on_workers(workers, [&](const Job& job) {
      const Given given{.optimizer = Sgd{.lr = 1e-3, .momentum = 0.9}};
      auto model = two_parts();
      Trainer trainer(job, *model, given.optimizer,
                      {.shards = kShards, .logical_workers = 3, .averaging = local_sgd(3, 2)});
      std::vector<std::unique_ptr<Alone>> alone;
      for (const auto& [begin, end] : kLogical) {
        alone.push_back(std::make_unique<Alone>(job, given, begin, end));
      }
      for (std::int64_t step = 1; step <= 9; ++step) {
        for (const auto& one : alone) step_of(one->trainer, one->model, one->first);
        step_of(trainer, model);
        const bool is_due = step <= 2 || step == 5 || step == 8;
        for (const auto& item : model->named_parameters()) {
          const auto all = trainer.gather(item.key());
          const bool equal = torch::equal(all[0], all[1]) && torch::equal(all[0], all[2]);
          EXPECT_EQ(equal, is_due) << item.key() << " after step " << step;
        }
        if (!is_due) continue;
        const torch::NoGradGuard no_grad;
        std::vector<std::pair<std::string, torch::Tensor>> means;
        const auto take = [&](const auto& list_of) {
          for (const auto& item : list_of(alone[0]->model)) {
            if (!item.value().is_floating_point()) continue;
            std::vector<torch::Tensor> copies;
            for (const auto& one : alone) copies.push_back(list_of(one->model)[item.key()]);
            const bool equal =
                torch::equal(copies[0], copies[1]) && torch::equal(copies[0], copies[2]);
            means.emplace_back(item.key(), equal ? copies[0].clone() : mean_of(copies));
          }
        };
        take([](TwoParts& one) { return one->named_parameters(); });
        take([](TwoParts& one) { return one->named_buffers(); });
        const auto count = alone[0]->model->norm->num_batches_tracked.clone();
        for (const auto& one : alone) {
          one->trainer.edit([&] {
            for (const auto& [name, value] : means) {
              auto* place = one->model->named_parameters().find(name);
              if (place == nullptr) place = one->model->named_buffers().find(name);
              place->copy_(value);
            }
            one->model->norm->num_batches_tracked.copy_(count);
          });
        }
        expect_as_alone(trainer, model, alone, "step " + std::to_string(step));
      }
    });
  }
}

/// One parameter of which logical worker l's copy moves by its own constant gradient, so that each
/// number can be followed by hand.
struct OneWeight {
  OneWeight() : net(torch::nn::LinearOptions(1, 1).bias(false)) {
    torch::NoGradGuard no_grad;
    net->weight.fill_(1.0);
  }
  double of(const Trainer& trainer, std::int64_t l) const {
    return trainer.gather("weight")[l].item<double>();
  }
  /// Shard s pulls by s + 1.
  StepResult step(Trainer& trainer) {
    return trainer.step([&](Shard& shard) {
      return shard.gradients({torch::full({1, 1}, static_cast<double>(shard.index() + 1))});
    });
  }
  torch::nn::Linear net;
};

// promise: averaging.h#before, averaging.h#block_momentum
TEST(AveragingPolicy, BlockMomentumFollowsItsFormula) {
  for (const bool nesterov : {false, true}) {
    for (const int workers : {1, 3}) {
      on_workers(workers, [&](const Job& job) {
        OneWeight one;
        Trainer trainer(job, *one.net, Sgd{.lr = 0.125},
                        {.shards = 4,
                         .logical_workers = 4,
                         .averaging = block_momentum(
                             2, 0, {.momentum = 0.5, .rate = 0.75, .nesterov = nesterov})});
        // In two steps logical worker l moves by 2·0.125·(l + 1); their mean by 0.625.
        double before = 1;
        double delta = 0;
        for (int round = 0; round < 4; ++round) {
          one.step(trainer);
          EXPECT_NEAR(one.of(trainer, 3), before - 0.5, 1e-6);
          one.step(trainer);
          const double next = 0.5 * delta + 0.75 * -0.625;
          before += next + (nesterov ? 0.5 * (next - delta) : 0);
          delta = next;
          for (std::int64_t l = 0; l < 4; ++l) EXPECT_NEAR(one.of(trainer, l), before, 1e-6);
          EXPECT_EQ(one.of(trainer, 0), one.of(trainer, 3));
        }
      });
    }
  }
}

// In float64: torch's SGD of what all copies were before, less their mean.
// promise: averaging.h#step, averaging.h#warm_up
TEST(AveragingPolicy, DilocoTakesTheMeanInItsWarmUpAndThenNesterovsStep) {
  for (const int workers : {1, 3}) {
    on_workers(workers, [&](const Job& job) {
      OneWeight one;
      Trainer trainer(job, *one.net, Sgd{.lr = 0.125},
                      {.shards = 4,
                       .logical_workers = 4,
                       .averaging = diloco(3, {.rate = 0.75, .momentum = 0.5, .warm_up = 2})});
      double weight = 1;
      double buffer = 0;
      for (std::int64_t step = 1; step <= 14; ++step) {
        one.step(trainer);
        // In each step logical worker l moves by 0.125·(l + 1); their mean by 0.3125.
        const auto after = step - 2;
        if (after <= 0) weight -= 0.3125;
        if (after > 0 && after % 3 == 0) {
          const double gradient = 3 * 0.3125;
          buffer = 0.5 * buffer + gradient;
          weight -= 0.75 * (gradient + 0.5 * buffer);
        }
        if (after > 0 && after % 3 != 0) continue;
        for (std::int64_t l = 0; l < 4; ++l) EXPECT_NEAR(one.of(trainer, l), weight, 1e-5) << step;
        EXPECT_EQ(one.of(trainer, 0), one.of(trainer, 3));
      }
    });
  }
}

// promise: averaging.h#diloco, averaging.h#due
TEST(AveragingPolicy, FragmentsOfDilocoAreAveragedInTurnSoThatNoStepSendsMuch) {
  // With 4200, 700, 700, 700, 3500 and 5 elements two fragments are 4900 and 4905.
  const std::vector<std::vector<std::string>> fragments = {
      {"body.weight", "body.bias"}, {"norm.weight", "norm.bias", "head.weight", "head.bias"}};
  on_workers(2, [&](const Job& job) {
    auto model = two_parts();
    Trainer trainer(job, *model, Sgd{.lr = 1e-3},
                    {.shards = 4,
                     .logical_workers = 2,
                     .averaging = diloco(5, {.fragments = 2, .warm_up = 0})});
    std::size_t all_bytes = 0;
    std::size_t largest = 0;
    for (const auto& item : model->named_parameters()) {
      all_bytes += item.value().nbytes();
      largest = std::max(largest, item.value().nbytes());
    }
    std::size_t sent = 0;
    for (std::int64_t step = 1; step <= 15; ++step) {
      const auto bytes = step_of(trainer, model).report.max_sent_bytes;
      EXPECT_LE(bytes, all_bytes / 2 + largest);
      sent += bytes;
      for (std::size_t f = 0; f < fragments.size(); ++f) {
        for (const auto& name : fragments[f]) {
          const auto all = trainer.gather(name);
          EXPECT_EQ(torch::equal(all[0], all[1]), step % 5 == (f == 0 ? 2 : 0))
              << name << " after step " << step;
        }
      }
    }
    EXPECT_EQ(sent, 3 * all_bytes) << "everything once in five steps";
  });
}

/// DiLoCo of 6 steps, of which two workers save step `saved`, ends as a run without a checkpoint
/// does, on whichever number of workers it resumes.
void expect_resumes(const Diloco& numbers, std::int64_t saved, std::int64_t until) {
  const TemporaryFolder folder;
  const auto train = [&](int workers, std::int64_t from, std::int64_t to) {
    return text_of_rank_0(workers, [&](const Job& job) {
      auto model = two_parts();
      Trainer trainer(job, *model, AdamW{.lr = 0.01},
                      {.shards = 5, .logical_workers = 3, .averaging = diloco(6, numbers)});
      if (from > 0) {
        EXPECT_EQ(trainer.load(folder.file("run")), from);
      }
      while (trainer.steps() < to) step_of(trainer, model);
      if (to == saved) trainer.save(folder.file("run"));
      return trainer.state_sha256();
    });
  };
  const auto whole = train(1, 0, until);
  train(2, 0, saved);
  for (const int workers : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(train(workers, saved, until), whole) << workers;
  }
}

// What a round has seen so far, and each fragment's momentum, are in the checkpoint.
TEST(AveragingPolicy, FragmentsResumeInTheMiddleOfARoundOnAnyNumberOfWorkers) {
  // Two fragments are due in the round that the checkpoint cuts.
  expect_resumes({.fragments = 3, .warm_up = 1}, 12, 21);
}

// Copies differ by what they did in the step that the mean took.
// promise: averaging.h#after, averaging.h#overlap, averaging.h#steps
TEST(AveragingPolicy, AMeanThatOverlapsIsAppliedLaterAndMixedWithEachCopy) {
  for (const int workers : {1, 3}) {
    on_workers(workers, [&](const Job& job) {
      OneWeight one;
      const Diloco numbers{.rate = 0.75, .momentum = 0.5, .warm_up = 2, .overlap = 2, .own = 0.25};
      Trainer trainer(job, *one.net, Sgd{.lr = 0.125},
                      {.shards = 4, .logical_workers = 4, .averaging = diloco(4, numbers)});
      std::vector<double> copies(4, 1);
      double before = 1;
      double buffer = 0;
      double sent = 0;
      const auto mean = [&] { return (copies[0] + copies[1] + copies[2] + copies[3]) / 4; };
      for (std::int64_t step = 1; step <= 14; ++step) {
        const auto result = one.step(trainer);
        for (std::size_t l = 0; l < 4; ++l) copies[l] -= 0.125 * static_cast<double>(l + 1);
        const auto after = step - 2;
        if (after <= 0) std::fill(copies.begin(), copies.end(), before = mean());
        if (after > 0 && after % 4 == 2 && step > 4) {
          const double gradient = before - sent;
          buffer = 0.5 * buffer + gradient;
          before -= 0.75 * (gradient + 0.5 * buffer);
          for (auto& copy : copies) copy = 0.25 * copy + 0.75 * before;
        }
        const bool sends = after > 0 && after % 4 == 0;
        if (sends) sent = mean();
        EXPECT_EQ(result.report.max_sent_bytes, sends || after <= 0 ? 4u : 0u) << step;
        for (std::size_t l = 0; l < 4; ++l) {
          EXPECT_NEAR(one.of(trainer, static_cast<std::int64_t>(l)), copies[l], 1e-5) << step;
        }
      }
    });
  }
}

TEST(AveragingPolicy, AMeanInFlightWaitsForAStepThatCountsAndIsForgottenByAnEdit) {
  on_workers(2, [&](const Job& job) {
    OneWeight one;
    Trainer trainer(
        job, *one.net, Sgd{.lr = 0.125},
        {.shards = 4,
         .logical_workers = 4,
         .averaging = diloco(4, {.rate = 1, .momentum = 0, .warm_up = 0, .overlap = 1, .own = 0})});
    for (int step = 1; step <= 4; ++step) one.step(trainer);
    const auto dropped = trainer.step([&](Shard& shard) {
      return shard.gradients({torch::full({1, 1}, std::numeric_limits<double>::infinity())});
    });
    EXPECT_FALSE(dropped.applied);
    EXPECT_NE(one.of(trainer, 0), one.of(trainer, 3)) << "not in a step that is dropped";
    one.step(trainer);
    EXPECT_NEAR(one.of(trainer, 0), 1 - 4 * 0.3125, 1e-6) << "the mean of step 4, in step 6";
    EXPECT_EQ(one.of(trainer, 0), one.of(trainer, 3));
    for (int step = 7; step <= 8; ++step) one.step(trainer);
    trainer.edit([&] {
      const torch::NoGradGuard no_grad;
      one.net->weight.fill_(5);
    });
    one.step(trainer);
    for (std::int64_t l = 0; l < 4; ++l) {
      EXPECT_NEAR(one.of(trainer, l), 5 - 0.125 * static_cast<double>(l + 1), 1e-6);
    }
  });
}

TEST(AveragingPolicy, AMeanInFlightIsInTheCheckpointForAnyNumberOfWorkers) {
  for (const bool int8 : {false, true}) {
    // The first fragment is sent in step 10.
    expect_resumes({.fragments = 2, .warm_up = 1, .int8 = int8, .overlap = 2, .own = 0.25}, 11, 19);
  }
}

/// Moves of 127 and of 0.25, 0.75, 1.5 in one block, whose scale is 1.
struct FourWeights {
  FourWeights() : net(torch::nn::LinearOptions(4, 1).bias(false)) {
    torch::NoGradGuard no_grad;
    net->weight.zero_();
  }
  void step(Trainer& trainer) {
    trainer.step([&](Shard& shard) {
      return shard.gradients({-torch::tensor({{127.0F, 0.25F, 0.75F, 1.5F}})});
    });
  }
  std::vector<float> values() const {
    const auto* const first = net->weight.data_ptr<float>();
    return {first, first + 4};
  }
  torch::nn::Linear net;
};

// promise: averaging.h#sends_int8
TEST(AveragingPolicy, WhatDifferencesIn8BitsLoseIsKeptInTheStateAndSentLater) {
  const TemporaryFolder folder;
  for (const int workers : {1, 3}) {
    on_workers(workers, [&](const Job& job) {
      FourWeights four;
      const TrainerOptions options{
          .shards = 4,
          .logical_workers = 4,
          .averaging = diloco(1, {.rate = 1, .momentum = 0, .warm_up = 0, .int8 = true})};
      Trainer trainer(job, *four.net, Sgd{.lr = 1}, options);
      four.step(trainer);
      EXPECT_THAT(four.values(), ElementsAre(127, 0, 1, 2));
      four.step(trainer);  // sends 127, 0.5, 0.5, 1: of two that are as near the even one
      EXPECT_THAT(four.values(), ElementsAre(254, 0, 1, 3));
      EXPECT_NEAR(trainer.traffic().all_steps[0].residual_norm,
                  std::sqrt(4 * (0.5 * 0.5 + 0.5 * 0.5)), 1e-6);
      trainer.save(folder.file("four"));
      four.step(trainer);  // sends 127, 0.75, 1.25, 1.5
      EXPECT_THAT(four.values(), ElementsAre(381, 1, 2, 5));
      const auto hash = trainer.state_sha256();

      FourWeights other;
      Trainer resumed(job, *other.net, Sgd{.lr = 1}, options);
      EXPECT_EQ(resumed.load(folder.file("four")), 2);
      other.step(resumed);
      EXPECT_THAT(other.values(), ElementsAre(381, 1, 2, 5));
      EXPECT_EQ(resumed.state_sha256(), hash);
      resumed.edit([&] {
        const torch::NoGradGuard no_grad;
        other.net->weight.zero_();
      });
      EXPECT_EQ(resumed.traffic().all_steps[0].residual_norm, 0) << "what was lost is of no use";
      other.step(resumed);
      EXPECT_THAT(other.values(), ElementsAre(127, 0, 1, 2));
    });
  }
}

// promise: averaging.h#int8
TEST(AveragingPolicy, DifferencesIn8BitsResumeOnAnyNumberOfWorkersAndAreAFourthOfTheBytes) {
  const TemporaryFolder folder;
  const auto train = [&](int workers, std::int64_t until, bool loads, bool saves) {
    return text_of_rank_0(workers, [&](const Job& job) {
      auto model = two_parts();
      Trainer trainer(job, *model, AdamW{.lr = 0.01},
                      {.shards = 5,
                       .logical_workers = 3,
                       .averaging = diloco(6, {.fragments = 2, .warm_up = 1, .int8 = true})});
      if (loads) {
        EXPECT_EQ(trainer.load(folder.file("run")), 11);
      }
      std::size_t sent = 0;
      while (trainer.steps() < until) sent += step_of(trainer, model).report.max_sent_bytes;
      if (saves) trainer.save(folder.file("run"));
      if (!loads && !saves) {
        // 4200, 700, 700, 700, 3500 and 5 values, in the warm-up and in three rounds.
        const std::size_t bytes = 9805 + 4 * (17 + 3 + 3 + 3 + 14 + 1);
        EXPECT_EQ(sent, 4 * bytes);
        EXPECT_GE(4.0 * 9805, 3.9 * static_cast<double>(bytes));
        std::uint64_t both_ways = 0;
        for (const auto& bucket : trainer.traffic().all_steps) both_ways += bucket.bytes;
        EXPECT_EQ(both_ways, 3 * 2 * sent) << "the mean comes back in 8 bits too";
      }
      return trainer.state_sha256();
    });
  };
  const auto whole = train(1, 19, false, false);
  train(2, 11, false, true);  // one of two fragments was due in this round
  for (const int workers : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(train(workers, 19, true, false), whole) << workers;
  }
}

// promise: averaging.h#StateAtAveraging, trainer_options.h#state_at_averaging
TEST(AveragingPolicy, OfTheOptimizersStateIsKeptAveragedOrNothing) {
  for (const auto rule :
       {StateAtAveraging::keep, StateAtAveraging::average, StateAtAveraging::reset}) {
    on_workers(2, [&](const Job& job) {
      OneWeight one;
      Trainer trainer(job, *one.net, Sgd{.lr = 0.125, .momentum = 0.5},
                      {.shards = 2,
                       .logical_workers = 2,
                       .averaging = local_sgd(2),
                       .state_at_averaging = rule});
      double weights[2] = {1, 1};
      double momentum[2] = {0, 0};
      for (int step = 1; step <= 6; ++step) {
        one.step(trainer);
        for (int l = 0; l < 2; ++l) {
          momentum[l] = 0.5 * momentum[l] + (l + 1);
          weights[l] -= 0.125 * momentum[l];
        }
        if (step % 2 == 0) {
          weights[0] = weights[1] = (weights[0] + weights[1]) / 2;
          if (rule == StateAtAveraging::average) {
            momentum[0] = momentum[1] = (momentum[0] + momentum[1]) / 2;
          }
          if (rule == StateAtAveraging::reset) momentum[0] = momentum[1] = 0;
        }
        for (int l = 0; l < 2; ++l) {
          EXPECT_NEAR(one.of(trainer, l), weights[l], 1e-6) << name_of(rule) << " " << step;
        }
      }
    });
  }
}

// promise: averaging.h#due, averaging.h#fragments
TEST(AveragingPolicy, PartialUpdateAveragesOneBucketPerStepInTurn) {
  on_workers(2, [&](const Job& job) {
    auto model = two_parts();
    Trainer trainer(job, *model, Sgd{.lr = 1e-3},
                    {.shards = 4,
                     .compression = {.fusion = 1000},
                     .logical_workers = 2,
                     .averaging = partial_update()});
    // More than 1000 elements go alone, others join: the buckets are …
    const std::vector<std::vector<std::string>> buckets = {
        {"body.weight"}, {"body.bias", "norm.weight"}, {"head.weight"}, {"norm.bias", "head.bias"}};
    for (std::int64_t step = 1; step <= 9; ++step) {
      step_of(trainer, model);
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        for (const auto& name : buckets[b]) {
          const auto all = trainer.gather(name);
          const bool due = (step - 1) % 4 == static_cast<std::int64_t>(b);
          EXPECT_EQ(torch::equal(all[0], all[1]), due) << name << " after step " << step;
        }
      }
    }
  });
}

// promise: averaging.h#due, traffic.h#BucketTraffic
TEST(AveragingPolicy, WhatNobodyUpdatedStaysAsItWas) {
  on_workers(2, [&](const Job& job) {
    auto net = torch::nn::ModuleList(torch::nn::Linear(3, 40), torch::nn::Linear(3, 40));
    Trainer trainer(job, *net, Adam{.lr = 0.1, .weight_decay = 0.1},
                    {.shards = 5, .logical_workers = 5, .averaging = block_momentum(1)});
    const auto before = bytes_of(net[1]->as<torch::nn::Linear>()->weight);
    for (int step = 0; step < 3; ++step) {
      trainer.step([&](Shard& shard) {
        return shard.loss(
            net[0]->as<torch::nn::Linear>()->forward(torch::ones({2, 3})).square().mean());
      });
    }
    EXPECT_EQ(bytes_of(net[1]->as<torch::nn::Linear>()->weight), before);
    const auto traffic = trainer.traffic();
    ASSERT_EQ(traffic.all_steps.size(), 1u);
    // weight and bias of the first layer, 160 floats: 5 copies, there and back, 3 times
    EXPECT_EQ(traffic.all_steps[0].bytes, 3u * 10 * 160 * 4);
    EXPECT_EQ(traffic.all_steps[0].bytes_dense, 3u * 10 * 160 * 4);
  });
}

// promise: step_report.h#collectives, step_report.h#max_sent_bytes, traffic.h#collectives
TEST(AveragingPolicy, StateThatIsAveragedIsSentToo) {
  for (const auto rule : {StateAtAveraging::keep, StateAtAveraging::average}) {
    on_workers(1, [&](const Job& job) {
      OneWeight one;
      Trainer trainer(job, *one.net, Adam{},
                      {.shards = 4,
                       .logical_workers = 4,
                       .averaging = local_sgd(2),
                       .state_at_averaging = rule});
      EXPECT_EQ(one.step(trainer).report.collectives, 0);
      const std::size_t tensors = rule == StateAtAveraging::keep ? 1 : 3;
      const auto report = one.step(trainer).report;
      EXPECT_EQ(report.collectives, 1);
      EXPECT_EQ(report.max_sent_bytes, 4 * tensors);
      EXPECT_EQ(trainer.traffic().all_steps[0].bytes, 4 * tensors * 2 * 4);
      EXPECT_EQ(trainer.traffic().all_steps[0].bytes_dense, 4u * 2 * 4 * 2);
      EXPECT_EQ(trainer.traffic().collectives, 1);
    });
  }
}

// promise: trainer.h#dropped_locally
TEST(AveragingPolicy, AGradientThatIsNotFiniteDropsThatLogicalWorkersStepAlone) {
  on_workers(3, [&](const Job& job) {
    const Given given;
    auto model = two_parts();
    Trainer trainer(job, *model, given.optimizer,
                    {.shards = kShards,
                     .loss_scale = {.start = 8, .dynamic = true, .grow_after = 100},
                     .logical_workers = 3,
                     .averaging = std::make_shared<Never>()});
    step_of(trainer, model);
    const auto buffers = [&](std::int64_t l) {
      std::string bytes;
      trainer.with_logical_worker(l, [&] { bytes = bytes_of(model->norm->running_mean); });
      return bytes;
    };
    const auto before = trainer.gather("head.weight");
    const std::vector<std::string> buffers_before = {buffers(0), buffers(1), buffers(2)};
    const auto result = trainer.step([&](Shard& shard) {
      const double bad = shard.index() == 3 ? std::numeric_limits<double>::infinity() : 1;
      return shard.loss(model->loss(2, shard.index()) * bad);
    });
    EXPECT_TRUE(result.applied);
    EXPECT_THAT(result.dropped_locally, ElementsAre(1));
    EXPECT_EQ(result.loss_scale, 8);
    const auto after = trainer.gather("head.weight");
    for (std::int64_t l = 0; l < 3; ++l) {
      EXPECT_EQ(torch::equal(after[l], before[l]), l == 1) << l;
      EXPECT_EQ(buffers(l) == buffers_before[static_cast<std::size_t>(l)], l == 1) << l;
    }
    EXPECT_EQ(step_of(trainer, model).loss_scale, 4);
    const auto all_bad = trainer.step([&](Shard& shard) {
      return shard.loss(model->loss(3, shard.index()) * std::numeric_limits<double>::infinity());
    });
    EXPECT_FALSE(all_bad.applied);
    EXPECT_THAT(all_bad.dropped_because, HasSubstr("in shard 0 is not finite"));
  });
}

TEST(AveragingPolicy, AStateOfAShardWhoseStepWasDroppedStaysAsItWas) {
  on_workers(2, [](const Job& job) {
    OneWeight one;
    Trainer trainer(job, *one.net, Sgd{.lr = 0.1},
                    {.shards = 4, .logical_workers = 2, .averaging = std::make_shared<Never>()});
    double seen[4] = {};
    const auto step = [&](bool bad) {
      return trainer.step([&](Shard& shard) {
        auto state = shard.state("count", [] { return torch::zeros({1}); });
        seen[shard.index()] = state.item<double>();
        state += 1;
        const double nan = std::numeric_limits<double>::quiet_NaN();
        return shard.gradients({torch::full({1, 1}, bad && shard.index() == 2 ? nan : 1.0)});
      });
    };
    step(false);
    EXPECT_THAT(step(true).dropped_locally, ElementsAre(1));
    step(false);
    for (auto s = trainer.shards().first; s < trainer.shards().second; ++s) {
      EXPECT_EQ(seen[s], s < 2 ? 2 : 1) << s;
    }
  });
}

// promise: error.h#Diverged
TEST(AveragingPolicy, ALogicalWorkerThatIsDroppedForeverEndsTheRunAsAllOfThemWould) {
  on_workers(2, [](const Job& job) {
    OneWeight one;
    Trainer trainer(job, *one.net, Sgd{.lr = 0.1},
                    {.shards = 4,
                     .logical_workers = 2,
                     .averaging = std::make_shared<Never>(),
                     .max_consecutive_drops = 3});
    const auto bad_step = [&] {
      trainer.step([&](Shard& shard) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        return shard.gradients({torch::full({1, 1}, shard.index() == 2 ? nan : 1.0)});
      });
    };
    bad_step();
    bad_step();
    one.step(trainer);  // the count begins anew
    bad_step();
    bad_step();
    EXPECT_THAT(text_of<Diverged>([&] { bad_step(); }),
                AllOf(HasSubstr("logical worker 1 could not take part in 3 steps in succession"),
                      HasSubstr("the gradient of \"weight\" in shard 2 is not finite")));
  });
}

// What is not finite went into checkpoints, and a later gradient was blamed for it.
TEST(AveragingPolicy, ACombineThatThrowsOrLeavesWhatIsNotFiniteIsNamedOnAllWorkers) {
  class Broken : public AveragingPolicy {
   public:
    explicit Broken(bool throws) : throws_(throws) {}
    std::string name() const override { return "broken"; }
    bool due(std::int64_t step, std::int64_t, std::int64_t) const override { return step == 2; }
    void combine(const AveragingRound& round) const override {
      if (throws_) throw std::runtime_error("out of luck");
      round.values.back() = std::numeric_limits<double>::quiet_NaN();
    }

   private:
    bool throws_;
  };
  on_workers(2, [](const Job& job) {
    for (const bool throws : {true, false}) {
      auto net = torch::nn::Linear(100, 200);
      Trainer trainer(
          job, *net, Sgd{},
          {.shards = 2, .logical_workers = 2, .averaging = std::make_shared<Broken>(throws)});
      const auto step = [&] {
        trainer.step([&](Shard& shard) {
          return shard.loss(net->forward(torch::ones({2, 100})).square().mean());
        });
      };
      step();
      EXPECT_THAT(
          text_of<Mismatch>(step),
          AllOf(HasSubstr("averaging broken, parameter \""),
                HasSubstr(throws ? "out of luck" : "what its copies become is not finite")));
    }
  });
}

// promise: trainer.h#gradient
TEST(ReplicaParameters, BetweenTheHalvesOfARefusedStepGradientsCanStillBeAskedFor) {
  on_workers(2, [](const Job& job) {
    auto model = two_parts();
    Trainer trainer(job, *model, Adam{},
                    {.shards = 4, .logical_workers = 2, .per_replica = [](const std::string& name) {
                       return name.starts_with("norm.");
                     }});
    trainer.accumulate([](Shard& shard) { return shard.nothing(); });
    EXPECT_EQ(trainer.gradient_norm(), 0);
    EXPECT_FALSE(trainer.gradient("norm.weight").defined());
    EXPECT_FALSE(trainer.apply().applied);
    trainer.accumulate([&](Shard& shard) {
      const auto bad = torch::full({}, std::numeric_limits<double>::infinity());
      const auto loss = model->loss(1, shard.index());
      return shard.loss(loss + model->head->bias.sum() * bad, weight_of(shard.index()));
    });
    EXPECT_EQ(trainer.gradient("norm.weight").size(0), 2);
    EXPECT_FALSE(trainer.apply().applied);
  });
}

// promise: trainer.h#gradient
TEST(ReplicaParameters, AGradientThatALogicalWorkerDoesNotHaveIsNaN) {
  on_workers(2, [](const Job& job) {
    OneWeight one;
    Trainer trainer(job, *one.net, Sgd{.lr = 0.125},
                    {.shards = 4, .logical_workers = 2, .averaging = std::make_shared<Never>()});
    trainer.accumulate([](Shard& shard) {
      if (shard.index() >= 2) return shard.nothing();
      return shard.gradients({torch::full({1, 1}, static_cast<double>(shard.index() + 1))});
    });
    const auto gradient = trainer.gradient("weight");
    EXPECT_EQ(gradient.sizes(), torch::IntArrayRef({2, 1, 1}));
    EXPECT_EQ(gradient[0].item<double>(), 1.5);
    EXPECT_TRUE(std::isnan(gradient[1].item<double>()));
    trainer.apply();
    EXPECT_EQ(one.of(trainer, 1), 1) << "nor is it updated";
  });
}

// promise: trainer.h#edit
TEST(ReplicaParameters, WhatIsEditedTakesTheFirstOnesOptimizerStateWithIt) {
  on_workers(2, [](const Job& job) {
    OneWeight one;
    Trainer trainer(job, *one.net, Sgd{.lr = 0.125, .momentum = 0.5},
                    {.shards = 2, .logical_workers = 2, .averaging = std::make_shared<Never>()});
    one.step(trainer);  // momentum 1 and 2
    trainer.edit([&] { one.net->weight.data().fill_(4); });
    EXPECT_EQ(one.of(trainer, 0), 4);
    EXPECT_EQ(one.of(trainer, 1), 4);
    one.step(trainer);  // 0.5 · 1 and their gradients
    EXPECT_NEAR(one.of(trainer, 0), 4 - 0.125 * (0.5 + 1), 1e-6);
    EXPECT_NEAR(one.of(trainer, 1), 4 - 0.125 * (0.5 + 2), 1e-6);
  });
}

// promise: trainer.h#edit
TEST(ReplicaParameters, WhatIsEditedByAnyMeansBecomesEverybodysAndNothingElse) {
  on_workers(2, [](const Job& job) {
    auto model = two_parts();
    model->to(torch::kBFloat16);
    Trainer trainer(job, *model, Sgd{.lr = 1e-3},
                    {.shards = 4, .logical_workers = 2, .averaging = local_sgd(2)});
    const auto step = [&] {
      trainer.step([&](Shard& shard) {
        const auto x = torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(shard.seed()));
        const auto y = model->norm->forward(model->body->forward(x.to(torch::kBFloat16)));
        return shard.loss(model->head->forward(y).square().mean());
      });
    };
    step();
    step();  // all copies are one
    const auto before = trainer.state_sha256();
    trainer.edit([] {});
    EXPECT_EQ(trainer.state_sha256(), before);  // float32 masters, too
    step();
    trainer.edit([&] { model->head->bias.data().fill_(0.5); });  // no version tells of it
    EXPECT_TRUE(
        torch::equal(trainer.gather("head.bias"), torch::full({2, 5}, 0.5, torch::kBFloat16)));
    const auto weights = trainer.gather("head.weight");
    EXPECT_FALSE(torch::equal(weights[0], weights[1]));
  });
}

// promise: trainer.h#state_sha256
TEST(ReplicaParameters, TheHashCoversEveryLogicalWorkersCopy) {
  on_workers(2, [](const Job& job) {
    OneWeight one;
    Trainer trainer(job, *one.net, Sgd{.lr = 0.1},
                    {.shards = 4, .logical_workers = 4, .averaging = std::make_shared<Never>()});
    for (std::int64_t only = 3; only >= 0; --only) {
      const auto before = trainer.state_sha256();
      const auto weights = trainer.gather("weight");
      trainer.step([&](Shard& shard) {
        if (shard.index() != only) return shard.nothing();
        return shard.gradients({torch::ones({1, 1})});
      });
      EXPECT_NE(trainer.state_sha256(), before) << only;
      for (std::int64_t l = 0; l < 4; ++l) {
        EXPECT_EQ(torch::equal(trainer.gather("weight")[l], weights[l]), l != only) << l;
      }
    }
  });
}

// promise: trainer.h#gather, trainer.h#with_logical_worker, trainer_options.h#per_replica
TEST(ReplicaParameters, OthersAreAveragedAsEver) {
  for (const int workers : {1, 3}) {
    on_workers(workers, [&](const Job& job) {
      auto model = two_parts();
      Trainer trainer(
          job, *model, Adam{.lr = 0.05},
          {.shards = 4,
           .clip = {.norm = 0.5},
           .logical_workers = 2,
           .per_replica = [](const std::string& name) { return name.starts_with("norm."); }});
      for (int step = 0; step < 3; ++step) {
        trainer.accumulate([&](Shard& shard) {
          return shard.loss(model->loss(shard.step(), shard.index()), weight_of(shard.index()));
        });
        const auto own = trainer.gradient("norm.weight");
        EXPECT_EQ(own.sizes(), torch::IntArrayRef({2, 700}));
        EXPECT_FALSE(torch::equal(own[0], own[1]));
        EXPECT_EQ(trainer.gradient("head.weight").dim(), 2);
        EXPECT_GT(trainer.gradient_norm(), trainer.gradient("head.weight").norm().item<double>());
        trainer.apply();
      }
      EXPECT_EQ(trainer.gather("head.weight").size(0), 1);
      const auto own = trainer.gather("norm.weight");
      EXPECT_FALSE(torch::equal(own[0], own[1]));
      // Between steps the model is the first logical worker's.
      EXPECT_TRUE(torch::equal(model->norm->weight, own[0]));
      std::string means[2];
      for (std::int64_t l = 0; l < 2; ++l) {
        trainer.with_logical_worker(l, [&] {
          EXPECT_TRUE(torch::equal(model->norm->weight, own[l]));
          means[l] = bytes_of(model->norm->running_mean);
        });
      }
      EXPECT_NE(means[0], means[1]);
      // What edit() writes to becomes everybody's; the rest stays.
      const auto bias = trainer.gather("norm.bias");
      trainer.edit([&] {
        const torch::NoGradGuard no_grad;
        model->norm->weight.fill_(0.5);
        model->norm->running_mean.fill_(0.25);
      });
      EXPECT_TRUE(torch::equal(trainer.gather("norm.weight"), torch::full({2, 700}, 0.5)));
      EXPECT_TRUE(torch::equal(trainer.gather("norm.bias"), bias));
      trainer.with_logical_worker(1, [&] {
        EXPECT_TRUE(torch::equal(model->norm->running_mean, torch::full({700}, 0.25)));
      });
    });
  }
}

// promise: averaging.h#fragments, trainer.h#with_logical_worker, trainer_options.h#logical_workers
TEST(AveragingPolicy, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THAT(text_of([] { averaging_policy_of("lokal"); }),
              AllOf(HasSubstr("\"lokal\""), HasSubstr("every-step, partial, local-sgd:K")));
  EXPECT_THAT(text_of([] { averaging_policy_of("local-sgd:x"); }), HasSubstr("local-sgd:x"));
  EXPECT_THAT(text_of([] { averaging_policy_of("local-sgd:0"); }), HasSubstr("at least 1"));
  EXPECT_THAT(text_of([] { block_momentum(2, 0, {.momentum = 1}); }), HasSubstr("below 1"));
  EXPECT_EQ(averaging_policy_of("every-step"), nullptr);
  EXPECT_EQ(averaging_policy_of("bmuf:4")->name(), "bmuf:4, momentum 1 − 1/L, rate 1");
  on_workers(1, [](const Job& job) {
    auto model = two_parts();
    const auto refusal = [&](const TrainerOptions& options, const Optimizer& optimizer = Adam{}) {
      return text_of([&] { Trainer(job, *model, optimizer, options); });
    };
    const auto is_norm = [](const std::string& name) { return name.starts_with("norm."); };
    EXPECT_THAT(refusal({.shards = 4, .averaging = local_sgd(2)}),
                HasSubstr("averaging local-sgd:2 without logical_workers"));
    EXPECT_THAT(refusal({.shards = 4, .logical_workers = 8, .averaging = local_sgd(2)}),
                HasSubstr("8 logical workers of 4 shards"));
    EXPECT_THAT(refusal({.shards = 4,
                         .logical_workers = 2,
                         .averaging = diloco(9, {.fragments = 7, .warm_up = 0})}),
                HasSubstr("diloco:9,0.7,0.9,fragments=7,warm-up=0: 7 fragments of 6 parameters"));
    EXPECT_THAT(refusal({.shards = 4,
                         .logical_workers = 2,
                         .averaging = diloco(9, {.overlap = 2}),
                         .state_at_averaging = StateAtAveraging::average}),
                AllOf(HasSubstr("state_at_averaging average with averaging diloco:9"),
                      HasSubstr("which overlaps")));
    EXPECT_THAT(refusal({.shards = 4,
                         .compression = {.codec = half_codec()},
                         .logical_workers = 2,
                         .averaging = local_sgd(2)}),
                HasSubstr("codec half with averaging local-sgd:2"));
    EXPECT_THAT(
        refusal(
            {.shards = 4, .logical_workers = 2, .per_replica = is_norm, .averaging = local_sgd(2)}),
        HasSubstr("per_replica with averaging local-sgd:2"));
    EXPECT_THAT(refusal({.shards = 4,
                         .logical_workers = 2,
                         .per_replica = [](const std::string&) { return false; }}),
                HasSubstr("per_replica holds of no parameter"));
    EXPECT_THAT(
        refusal({.shards = 4, .logical_workers = 2, .averaging = local_sgd(2), .ema_decay = 0.9}),
        HasSubstr("ema_decay 0.9 with averaging local-sgd:2"));
    EXPECT_THAT(refusal({.state_at_averaging = StateAtAveraging::reset}),
                HasSubstr("state_at_averaging reset without an averaging policy"));
    EXPECT_THAT(refusal({.shards = 4, .logical_workers = 2, .averaging = local_sgd(2)},
                        torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2))),
                AllOf(HasSubstr("per-replica \"body.weight\" with"), HasSubstr("Sgd, Adam")));
    EXPECT_THAT(
        refusal({.shards = 4, .row_sparse = is_norm, .logical_workers = 2, .per_replica = is_norm}),
        HasSubstr("row-sparse \"norm.weight\" is per replica"));
    EXPECT_THAT(refusal({.shards = 4,
                         .logical_workers = 2,
                         .per_replica = is_norm,
                         .state_at_averaging = StateAtAveraging::reset}),
                HasSubstr("state_at_averaging reset without an averaging policy"));
    {
      Trainer trainer(job, *model, Adam{},
                      {.shards = 4, .logical_workers = 2, .averaging = local_sgd(2)});
      EXPECT_THAT(text_of([&] {
                    trainer.step([&](Shard& shard) {
                      trainer.with_logical_worker(0, [] {});
                      return shard.nothing();
                    });
                  }),
                  HasSubstr("with_logical_worker() in shard"));
      EXPECT_THAT(text_of([&] {
                    trainer.with_logical_worker(
                        1, [&] { trainer.step([](Shard& shard) { return shard.nothing(); }); });
                  }),
                  HasSubstr("inside with_logical_worker()"));
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { trainer.edit([] {}); }, [&] { trainer.save("nowhere"); },
               [&] { trainer.load("nowhere"); }}) {
        EXPECT_THAT(text_of([&] { trainer.with_logical_worker(1, call); }),
                    HasSubstr("inside with_logical_worker()"));
      }
      EXPECT_THAT(text_of([&] {
                    trainer.with_logical_worker(1, [&] {
                      const torch::NoGradGuard no_grad;
                      model->head->bias.fill_(1);
                    });
                  }),
                  HasSubstr("\"head.bias\" was written between steps"));
    }
    Trainer trainer(job, *model, Adam{}, {.shards = 2});
    EXPECT_THAT(text_of([&] { trainer.with_logical_worker(0, [] {}); }),
                HasSubstr("with_logical_worker(0): nothing is per replica"));
    EXPECT_THAT(text_of([&] { trainer.gather("nothing"); }), HasSubstr("no parameter \"nothing\""));
  });
}

// promise: averaging.h#name
TEST(AveragingPolicy, ACheckpointOfAnotherPolicyIsRefused) {
  const TemporaryFolder folder;
  on_workers(1, [&](const Job& job) {
    const auto run = [&](const AveragingPolicyPointer& averaging, std::int64_t logical,
                         bool loads) {
      auto model = two_parts();
      Trainer trainer(job, *model, Adam{},
                      {.shards = 4, .logical_workers = logical, .averaging = averaging});
      if (loads) return text_of([&] { trainer.load(folder.file("run")); });
      step_of(trainer, model);
      trainer.save(folder.file("run"));
      return std::string();
    };
    run(local_sgd(3), 2, false);
    EXPECT_EQ(run(local_sgd(3), 2, true), "");
    EXPECT_THAT(run(local_sgd(4), 2, true), HasSubstr("local-sgd:4"));
    EXPECT_THAT(run(diloco(3, {.fragments = 2}), 2, true), HasSubstr("fragments=2"));
    EXPECT_THAT(run(diloco(3, {.int8 = true}), 2, true), HasSubstr("warm-up=3,int8"));
    EXPECT_THAT(run(diloco(3, {.overlap = 2}), 2, true), HasSubstr("overlap=2,own=0.5"));
    EXPECT_THAT(run(local_sgd(3), 4, true), HasSubstr("logical workers"));
    EXPECT_THAT(run(nullptr, 2, true), HasSubstr("per-replica in the checkpoint"));
  });
}

}  // namespace
}  // namespace tutti::test::averaging_cases
