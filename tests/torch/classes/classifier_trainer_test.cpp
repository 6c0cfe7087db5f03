// The split classifier as a layer of a Trainer's model.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "support/sanitized.h"
#include "torch/classes/trained_classifier.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trained::answer_of;
using trained::DenseTwin;
using trained::kClasses;
using trained::kShards;
using trained::Net;
using trained::samples_of;

std::string steps_of(int size, const Options& options, const Clip& clip = {}) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    Net net(group, options);
    Trainer trainer(group, net, Sgd{.lr = 0.1},
                    {.shards = kShards, .seed = 3, .schedule = Schedule::warm_up(3), .clip = clip});
    std::string text;
    for (int step = 0; step < 4; ++step) {
      const auto result = trainer.step([&](Shard& shard) { return answer_of(shard, net); });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      text += std::to_string(result.loss) + " ";
      if (result.gradient_norm) text += fmt::format("norm {} ", *result.gradient_norm);
    }
    EXPECT_EQ(net.head->updates(), 4);
    return text + parameters_sha256(net) + net.head->sha256() + trainer.state_sha256();
  });
}

// promise: parallel_cross_entropy.h#ParallelCrossEntropy, parallel_cross_entropy.h#sample_rate
TEST(ClassifierInATrainer, HasTheSameBytesOnAnyNumberOfWorkers) {
  for (const auto& options :
       {Options{}, Options{.label_smoothing = 0.1, .sample_rate = 0.3, .pieces = 8},
        Options{.margin = arc_face(0.3, 8)}}) {
    const auto alone = steps_of(1, options);
    for (const int size : {2, 3, 5, 8}) {
      EXPECT_EQ(steps_of(size, options), alone) << name_of_case(options, kClasses, size);
    }
  }
  const Clip clip{.norm = 0.2, .parameter_norm = 0.1, .value = 0.01};
  const auto clipped = steps_of(1, {.sample_rate = 0.3, .pieces = 8}, clip);
  EXPECT_THAT(clipped, HasSubstr("norm"));
  for (const int size : {2, 3, 8})
    EXPECT_EQ(steps_of(size, {.sample_rate = 0.3, .pieces = 8}, clip), clipped);
}

/// Both norms are those before.
void clip_as(const Clip& clip, const std::vector<torch::Tensor>& parameters) {
  const auto scale = [](double bound, double norm) {
    return bound > 0 ? std::min(1.0, bound / (norm + 1e-6)) : 1.0;
  };
  double squares = 0;
  for (const auto& parameter : parameters) {
    squares += parameter.grad().square().sum().item<double>();
  }
  for (const auto& parameter : parameters) {
    const double own = parameter.grad().norm().item<double>();
    parameter.grad().mul_(scale(clip.norm, std::sqrt(squares)) * scale(clip.parameter_norm, own));
    if (clip.value > 0) parameter.grad().clamp_(-clip.value, clip.value);
  }
}

void expect_dense_model(const Clip& clip) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    DenseTwin twin(net);
    Trainer trainer(group, net, Sgd{.lr = 0.1},
                    {.shards = kShards,
                     .schedule = Schedule::warm_up(3),
                     .clip = clip,
                     .loss_scale = {.start = 1024}});
    for (std::int64_t step = 1; step <= 4; ++step) {
      const auto result = trainer.step([&](Shard& shard) { return answer_of(shard, net); });
      twin.of_trunk.param_groups()[0].options().set_lr(0.1 * result.rate_factor);
      twin.of_head.param_groups()[0].options().set_lr(0.5 * result.rate_factor);
      torch::Tensor sum = torch::zeros({});
      double weight = 0;
      for (std::int64_t shard = 0; shard < kShards; ++shard) {
        const auto [x, y] = samples_of(step, shard);
        if (x.size(0) == 0) continue;
        sum = sum + twin.losses(x, y).sum();
        weight += static_cast<double>(x.size(0));
      }
      twin.backward(sum / weight);
      clip_as(clip, twin.parameters());
      twin.step();
      twin.expect_near_to(net);
    }
  });
}

// promise: parallel_cross_entropy.h#ParallelCrossEntropy, parallel_cross_entropy.h#step
TEST(ClassifierInATrainer, IsTheDenseModelInOneProcess) { expect_dense_model({}); }

/// Bounds that each gradient of these steps exceeds.
TEST(ClassifierInATrainer, IsClippedWithTheModel) {
  expect_dense_model({.norm = 0.3});
  expect_dense_model({.parameter_norm = 0.1});
  expect_dense_model({.value = 0.01});
  expect_dense_model({.norm = 0.3, .parameter_norm = 0.2, .value = 0.02});
}

TEST(ClassifierInATrainer, TheNormBetweenTheHalvesNeedsAClip) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    const auto norm_with = [&](const Clip& clip) {
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 2, .clip = clip});
      trainer.accumulate([&](Shard& shard) { return answer_of(shard, net); });
      const double norm = trainer.gradient_norm();
      trainer.apply();
      return norm;
    };
    EXPECT_GT(norm_with({.norm = 1e30}), 0.1);
    EXPECT_THAT(text_of<Unsupported>([&] { norm_with({}); }),
                HasSubstr("gradient_norm() with layers that are split"));
  });
}

TEST(ClassifierInATrainer, AShardThatFailsDropsTheStepAndNobodyWaits) {
  for (const bool before : {true, false}) {
    on_workers(3, [&](const Job& job) {
      const Group group(job);
      Net net(group, {});
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
      const auto step = [&] {
        return trainer.step([&](Shard& shard) { return answer_of(shard, net); });
      };
      step();
      const auto sha = trainer.state_sha256();
      bool is_mine = false;
      const auto failing = [&] {
        trainer.step([&](Shard& shard) -> ShardAnswer {
          if (shard.index() == 2) is_mine = true;
          if (shard.index() == 2 && before) throw std::runtime_error("no such file");
          auto answer = answer_of(shard, net);
          if (shard.index() == 2) throw std::runtime_error("no such file");
          return answer;
        });
      };
      const auto text = text_of<std::exception>(failing);
      EXPECT_THAT(text, HasSubstr("no such file"));
      if (is_mine) {
        EXPECT_THROW(failing(), std::runtime_error);
      } else {
        EXPECT_THROW(failing(), PeerFailed);
      }
      EXPECT_EQ(trainer.state_sha256(), sha);
      EXPECT_TRUE(step().applied);
      EXPECT_NE(trainer.state_sha256(), sha);
    });
  }
}

TEST(ClassifierInATrainer, ClassesOfAShardThatCountsNothingKeepTheirMomentum) {
  const auto steps = [&](bool calls) {
    return text_of_rank_0(2, [&](const Job& job) {
      const Group group(job);
      Net net(group, {.sample_rate = 0.2, .pieces = 4});
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 3});
      for (int step = 0; step < 3; ++step) {
        trainer.step([&](Shard& shard) {
          if (shard.index() != 1) return answer_of(shard, net);
          if (calls) answer_of(shard, net);
          return shard.nothing();
        });
      }
      return net.head->sha256() + trainer.state_sha256();
    });
  };
  EXPECT_EQ(steps(true), steps(false));
}

TEST(ClassifierInATrainer, ALabelThatIsNoClassDropsTheStep) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
    const auto text = text_of([&] {
      trainer.step([&](Shard& shard) {
        auto [x, y] = samples_of(shard.step(), shard.index());
        if (shard.index() == 1) y[0] = kClasses;
        return shard.loss(net.head->forward(net.trunk->forward(x), y));
      });
    });
    EXPECT_THAT(text, HasSubstr(job.rank() == 0 ? "label 40 of sample 0" : "rank 0"));
    EXPECT_EQ(net.head->updates(), 0);
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return answer_of(shard, net); }).applied);
  });
}

TEST(ClassifierInATrainer, AGradientThatIsNoNumberDropsTheStep) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    net.trunk->weight.requires_grad_(false);
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 3});
    const auto sha = net.head->sha256();
    const auto result = trainer.step([&](Shard& shard) {
      const auto [x, y] = samples_of(1, shard.index());
      const auto loss = net.head->forward(net.trunk->forward(x).detach(), y);
      return shard.loss(shard.index() == 2 ? loss * std::numeric_limits<float>::infinity() : loss);
    });
    EXPECT_FALSE(result.applied);
    EXPECT_THAT(result.dropped_because,
                HasSubstr("the gradient of \"head\" in shard 2 is not finite"));
    EXPECT_EQ(net.head->sha256(), sha);
  });
}

TEST(ClassifierInATrainer, IsSavedWholeAndResumesOnAnotherNumberOfWorkers) {
  const auto folder = (std::filesystem::temp_directory_path() /
                       ("tutti_classifier_trainer_" + std::to_string(::getpid())))
                          .string();
  const auto run = [&](int size, int to, bool loads, bool saves) {
    return text_of_rank_0(size, [&](const Job& job) {
      const Group group(job);
      Net net(group, {.sample_rate = 0.5, .pieces = 8});
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
      if (loads) {
        EXPECT_EQ(trainer.load(folder), 2);
      }
      while (trainer.steps() < to) {
        trainer.step([&](Shard& shard) { return answer_of(shard, net); });
      }
      if (saves) trainer.save(folder);
      return net.head->sha256() + trainer.state_sha256();
    });
  };
  const auto through = run(1, 4, false, false);
  run(3, 2, false, true);
  for (const int size : {1, 2, 5}) EXPECT_EQ(run(size, 4, true, false), through) << size;
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {.pieces = 7});
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
    const auto sha = net.head->sha256();
    EXPECT_THAT(text_of([&] { trainer.load(folder); }),
                HasSubstr("the split layer \"head\": pieces is 8 in the checkpoint, 7 here"));
    EXPECT_EQ(net.head->sha256(), sha);
    torch::nn::Linear plain(3, 3);
    Trainer other(group, *plain, Sgd{.lr = 0.1}, {.shards = kShards});
    EXPECT_THROW(other.load(folder), InvalidArgument);
  });
  std::filesystem::remove_all(folder);
}

TEST(ClassifierInATrainer, ACheckpointOfALayerOfOtherOptionsIsRefused) {
  const auto folder = (std::filesystem::temp_directory_path() /
                       ("tutti_other_classifier_" + std::to_string(::getpid())))
                          .string();
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    const auto with = [&](const Options& options, const std::function<void(Trainer&)>& body) {
      Net net(group, options);
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
      trainer.step([&](Shard& shard) { return answer_of(shard, net); });
      body(trainer);
    };
    const Options saved{.label_smoothing = 0.1, .sample_rate = 0.5, .seed = 3};
    with(saved, [&](Trainer& trainer) { trainer.save(folder); });
    with(saved, [&](Trainer& trainer) { EXPECT_EQ(trainer.load(folder), 1); });
    const auto refusal = [&](const Options& options) {
      std::string text;
      with(options, [&](Trainer& trainer) {
        const auto before = trainer.state_sha256();
        text = text_of([&] { trainer.load(folder); });
        EXPECT_EQ(trainer.state_sha256(), before);
      });
      return text;
    };
    auto other = saved;
    other.sample_rate = 1;
    EXPECT_THAT(refusal(other), HasSubstr("the split layer \"head\": sample_rate is 0.5 in the "
                                          "checkpoint, 1 here"));
    other = saved;
    other.margin = cos_face(0.2, 8);
    EXPECT_THAT(refusal(other), HasSubstr("margin is none in the checkpoint"));
    other = saved;
    other.seed = 4;
    EXPECT_THAT(refusal(other), HasSubstr("seed is 3 in the checkpoint, 4 here"));
    other = saved;
    other.label_smoothing = 0;
    EXPECT_THAT(refusal(other), HasSubstr("label_smoothing is 0.1 in the checkpoint"));
    other = saved;
    other.reduction = LossReduction::sum;
    EXPECT_THAT(refusal(other), HasSubstr("reduction is mean in the checkpoint, sum here"));
  });
  std::filesystem::remove_all(folder);
}

TEST(ClassifierInATrainer, TheStepLogHasDigestsOfTheLayer) {
  const auto file = (std::filesystem::temp_directory_path() /
                     ("tutti_classifier_log_" + std::to_string(::getpid())))
                        .string();
  const auto digests_of = [&](int size, double factor) {
    std::filesystem::remove(file);
    on_workers(size, [&](const Job& job) {
      const Group group(job);
      Net net(group, {});
      Trainer trainer(group, net, Sgd{.lr = 0.1},
                      {.shards = kShards, .log = file, .hash_every = 1});
      trainer.step([&](Shard& shard) {
        const auto [x, y] = samples_of(1, shard.index());
        return shard.loss(net.head->forward(net.trunk->forward(x).detach(), y) * factor +
                          0 * net.trunk->weight.sum());
      });
    });
    std::ifstream log(file);
    return std::string(std::istreambuf_iterator<char>(log), {});
  };
  const auto of = [](const std::string& log, const std::string& name) {
    const auto at = log.find('"' + name + "\":\"");
    return at == std::string::npos ? std::string() : log.substr(at + name.size() + 4, 64);
  };
  const auto one = digests_of(1, 1);
  EXPECT_EQ(of(one, "head.weight").size(), 64U) << one;
  EXPECT_EQ(of(one, "head.momentum_buffer").size(), 64U) << one;
  EXPECT_EQ(of(digests_of(3, 1), "head.momentum_buffer"), of(one, "head.momentum_buffer"));
  const auto other = digests_of(2, 1.5);
  EXPECT_EQ(of(other, "trunk.weight"), of(one, "trunk.weight"));
  EXPECT_NE(of(other, "head.weight"), of(one, "head.weight"));
  std::filesystem::remove(file);
}

TEST(ClassifierInATrainer, AHeadThatTheModelDoesNotHaveIsSaid) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    Trainer trainer(group, *net.trunk, Sgd{.lr = 0.1}, {.shards = 2});
    EXPECT_THAT(text_of([&] { trainer.step([&](Shard& shard) { return answer_of(shard, net); }); }),
                HasSubstr("whose model does not have the layer: register_module() it there"));
  });
}

// promise: parallel_cross_entropy.h#step
TEST(ClassifierInATrainer, CallsThatDoNotFitAStepAreRefused) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 4});
    const auto expect = [&](const std::string& why, const auto& call) {
      EXPECT_THAT(text_of([&] {
                    trainer.step([&](Shard& shard) {
                      const auto [x, y] = samples_of(1, shard.index());
                      return call(shard, net.trunk->forward(x), y);
                    });
                  }),
                  HasSubstr(why));
    };
    expect("a second forward() in a shard", [&](Shard& shard, auto x, auto y) {
      return shard.loss(net.head->forward(x, y) + net.head->forward(x, y));
    });
    expect("step() in a step of a Trainer", [&](Shard& shard, auto x, auto y) {
      auto loss = net.head->forward(x, y);
      net.head->step();
      return shard.loss(loss);
    });
    expect("returns shard.loss(), not shard.gradients()", [&](Shard& shard, auto x, auto y) {
      const auto loss = net.head->forward(x, y);
      return shard.gradients(torch::autograd::grad({loss}, net.trunk->parameters()));
    });
    EXPECT_EQ(net.head->updates(), 0);
    EXPECT_TRUE(trainer
                    .step([&](Shard& shard) {
                      const auto [x, y] = samples_of(1, shard.index());
                      return shard.loss(net.head->forward(net.trunk->forward(x), y));
                    })
                    .applied);
  });
}

TEST(ClassifierInATrainer, OptionsThatItDoesNotHaveAreSaid) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    const auto refusal = [&](const TrainerOptions& options) {
      return text_of<Unsupported>([&] { Trainer(group, net, Sgd{.lr = 0.1}, options); });
    };
    EXPECT_THAT(refusal({.shards = 2,
                         .logical_workers = 2,
                         .per_replica = [](const std::string&) { return true; }}),
                HasSubstr("one copy of the layer"));
    EXPECT_THAT(refusal({.shards = 2, .ema_decay = 0.9}), HasSubstr("out of the moving averages"));
    EXPECT_THAT(refusal({.shards = 2, .audit_every = 1}),
                HasSubstr("an audit computes a shard on one worker alone"));
    const Group half = group.split(job.rank(), "half");
    Net other(half, {});
    EXPECT_THAT(text_of([&] { Trainer(group, other, Sgd{.lr = 0.1}, {.shards = 2}); }),
                HasSubstr("split over other workers than the Trainer's"));
  });
}

TEST(ShardsOfATrainer, LayersThatNeedAllWorkersAtOnceAreRefusedWithTheReason) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    const auto refusal = [&](const auto& layer) {
      torch::nn::Sequential net(torch::nn::Linear(6, 6), layer);
      return text_of<Unsupported>([&] { Trainer(group, *net, Sgd{.lr = 0.1}, {.shards = 2}); });
    };
    EXPECT_THAT(refusal(SyncBatchNorm(group, torch::nn::BatchNormOptions(6))),
                AllOf(HasSubstr("\"1\""), HasSubstr("all workers' samples at once"),
                      HasSubstr("it is for a DataParallel")));
    EXPECT_THAT(refusal(ParallelLinear(group, {.features = 6, .classes = 4})),
                HasSubstr("of such layers a Trainer has ParallelCrossEntropy"));
  });
}

TEST(ShardsOfATrainer, APlainCollectiveInOneIsAnErrorThatSaysSo) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    torch::nn::Linear net(3, 3);
    Trainer trainer(group, *net, Sgd{.lr = 0.1}, {.shards = 3, .audit_every = 0});
    const auto step = [&](const std::function<torch::Tensor(const torch::Tensor&)>& of) {
      return text_of([&] {
        trainer.step([&](Shard& shard) {
          return shard.loss(of(net->forward(torch::ones({2, 3}))).sum());
        });
      });
    };
    EXPECT_THAT(
        step([&](const torch::Tensor& y) { return ops::all_reduce(group, y, Reduction::sum); }),
        AllOf(HasSubstr("all-reduce of group \"world\" in shard"),
              HasSubstr("of Trainer \"model\""), HasSubstr("call it between steps")));
    EXPECT_THAT(step([&](const torch::Tensor& y) { return ops::copy_to_group(group, y); }),
                HasSubstr("all-reduce of group \"world\" in shard"));  // in backward
    EXPECT_EQ(step([&](const torch::Tensor& y) { return y; }), "");
    group.barrier();
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
