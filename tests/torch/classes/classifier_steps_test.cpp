// Steps of a Trainer with split classifiers that do not go as usual: several layers in any order,
// failures, overflows, turns.

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "torch/classes/trained_classifier.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::HasSubstr;
using trained::answer_of;
using trained::kShards;
using trained::Net;
using trained::samples_of;

/// Two classifiers on one trunk.
struct TwoHeads : torch::nn::Module {
  explicit TwoHeads(const Group& group)
      : trunk(register_module("trunk", torch::nn::Linear(6, kIn))) {
    for (const char* const name : {"first", "second"}) {
      heads.push_back(register_module(
          name, ParallelCrossEntropy(group, kIn, 40, Sgd{.lr = 0.5, .momentum = 0.9},
                                     Options{.sample_rate = 0.5, .seed = heads.size()})));
    }
    const torch::NoGradGuard no_grad;
    trunk->weight.copy_(draw(1, {kIn, 6}, torch::kFloat32));
    trunk->bias.zero_();
  }
  torch::nn::Linear trunk;
  std::vector<ParallelCrossEntropy> heads;
};

/// `order`: the heads that a shard calls, one after another.
std::string two_heads(int size, const std::function<std::vector<std::size_t>(Shard&)>& order) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    TwoHeads net(group);
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards, .clip = {.norm = 1}});
    for (int step = 0; step < 3; ++step) {
      const auto report = trainer.step([&](Shard& shard) {
        const auto [x, y] = samples_of(1, shard.index());
        const auto features = net.trunk->forward(x);
        auto loss = features.square().mean();
        for (const auto head : order(shard)) {
          loss = loss + net.heads[head]->forward(features, y);
        }
        return shard.loss(loss);
      });
      EXPECT_TRUE(report.applied) << report.dropped_because;
    }
    return trainer.state_sha256();
  });
}

TEST(ClassifiersInATrainer, AreCalledInAnyOrderByAnyShards) {
  const std::vector<std::function<std::vector<std::size_t>(Shard&)>> orders{
      [](Shard&) {
        return std::vector<std::size_t>{0, 1};
      },
      [](Shard&) {
        return std::vector<std::size_t>{1, 0};
      },
      [](Shard& shard) {
        return shard.index() % 2 == 0 ? std::vector<std::size_t>{1, 0}
                                      : std::vector<std::size_t>{0, 1};
      },
      [](Shard& shard) {
        return shard.index() == 2
                   ? std::vector<std::size_t>{}
                   : std::vector<std::size_t>{static_cast<std::size_t>(shard.index() % 2)};
      }};
  for (const auto& order : orders) {
    const auto alone = two_heads(1, order);
    for (const int size : {2, 3}) EXPECT_EQ(two_heads(size, order), alone) << size;
  }
}

/// The state after a step in which something went wrong, and a good one.
std::string after(int size, const std::function<void(Trainer&, Net&, const Job&)>& body,
                  const Options& options = {}) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    Net net(group, options);
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
    body(trainer, net, job);
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return answer_of(shard, net); }).applied);
    return trainer.state_sha256();
  });
}

TEST(ClassifiersInATrainer, AShardThatCatchesWhatACallThrowsFailsAllTheSame) {
  const auto caught = [](Trainer& trainer, Net& net, const Job&) {
    const auto before = trainer.state_sha256();
    EXPECT_NE(text_of([&] {
                trainer.step([&](Shard& shard) {
                  try {
                    const auto [x, y] = samples_of(1, shard.index());
                    return shard.loss(
                        net.head->forward(net.trunk->forward(x), shard.index() == 2 ? y + 40 : y));
                  } catch (const Error&) {
                    return shard.nothing();
                  }
                });
              }),
              "");
    EXPECT_EQ(trainer.state_sha256(), before);
  };
  const auto alone = after(1, caught);
  for (const int size : {2, 3}) EXPECT_EQ(after(size, caught), alone) << size;
}

TEST(ClassifiersInATrainer, ALabelThatIsNoClassInAnyShardDropsTheStepAndTrainingGoesOn) {
  for (std::int64_t bad = 0; bad < kShards; ++bad) {
    after(3, [&](Trainer& trainer, Net& net, const Job&) {
      EXPECT_THAT(text_of([&] {
                    trainer.step([&](Shard& shard) {
                      const auto [x, y] = samples_of(1, shard.index());
                      return shard.loss(net.head->forward(net.trunk->forward(x),
                                                          shard.index() == bad ? y + 40 : y));
                    });
                  }),
                  HasSubstr("is none of the 40 classes"));
    });
  }
}

TEST(ClassifiersInATrainer, AWorkerThatFailsBeforeItsShardsKeepsNobodyWaiting) {
  after(3, [&](Trainer& trainer, Net& net, const Job& job) {
    const auto weight = net.trunk->weight;
    if (job.rank() == 0) weight.mutable_grad() = torch::ones_like(weight);
    EXPECT_THAT(
        text_of([&] { trainer.step([&](Shard& shard) { return answer_of(shard, net); }); }),
        HasSubstr(job.rank() == 0 ? "holds a gradient that no step has given it" : "rank 0"));
    weight.mutable_grad().reset();
  });
}

TEST(ClassifiersInATrainer, OneThatEndsIsNoticedAtOnceThoughItsWorkerLives) {
  const auto seen = std::filesystem::temp_directory_path() /
                    ("tutti_ended_classifier_" + std::to_string(::getpid()));
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    auto trainer =
        std::make_unique<Trainer>(group, net, Sgd{.lr = 0.1}, TrainerOptions{.shards = kShards});
    if (job.rank() == 0) {
      trainer.reset();
      for (int i = 0; i < 3000 && !std::filesystem::exists(seen); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return;
    }
    EXPECT_THAT(
        text_of([&] { trainer->step([&](Shard& shard) { return answer_of(shard, net); }); }),
        HasSubstr("rank 0 ended its part"));
    std::ofstream(seen) << "seen";
  });
  std::filesystem::remove(seen);
}

TEST(ClassifiersInATrainer, ALayerUnderTwoNamesIsOne) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto norm_of = [&](bool twice) {
      Net net(group, {});
      if (twice) net.register_module("again", net.head.ptr());
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 2, .clip = {.norm = 1e9}});
      return *trainer.step([&](Shard& shard) { return answer_of(shard, net); }).gradient_norm;
    };
    EXPECT_EQ(norm_of(true), norm_of(false));
  });
}

// promise: parallel_cross_entropy.h#zero_grad
TEST(ClassifiersInATrainer, GradientsThatAreForgottenByHabitAreTheTrainers) {
  const auto steps = [](bool forgets) {
    return text_of_rank_0(2, [&](const Job& job) {
      const Group group(job);
      Net net(group, {});
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
      trainer.step([&](Shard& shard) {
        const auto [x, y] = samples_of(1, shard.index());
        const auto loss = net.head->forward(net.trunk->forward(x), y);
        if (forgets) net.zero_grad();
        return shard.loss(loss);
      });
      trainer.accumulate([&](Shard& shard) { return answer_of(shard, net); });
      if (forgets && job.rank() == 0) net.zero_grad();
      trainer.apply();
      EXPECT_EQ(net.head->updates(), 2);
      return trainer.state_sha256();
    });
  };
  EXPECT_EQ(steps(true), steps(false));
}

TEST(ClassifiersInATrainer, GraphsOfAnotherStepAreRefusedAndTrainingGoesOn) {
  for (const int size : {1, 2}) {
    after(size, [](Trainer& trainer, Net& net, const Job&) {
      // Of no step at all.
      auto kept = net.head->forward(torch::ones({2, kIn}), torch::zeros({2}, torch::kInt64));
      const auto with = [&](Shard& shard) {
        const auto answer = [&](const torch::Tensor& loss) { return shard.loss(loss); };
        const auto [x, y] = samples_of(1, shard.index());
        const auto loss = net.head->forward(net.trunk->forward(x), y);
        return shard.index() == 0 ? answer(loss + kept) : answer(loss);
      };
      EXPECT_THAT(text_of([&] { trainer.step(with); }), HasSubstr("belongs to another step"));
      // Of a step that failed.
      EXPECT_NE(text_of<std::exception>([&] {
                  trainer.step([&](Shard& shard) -> ShardAnswer {
                    const auto [x, y] = samples_of(1, shard.index());
                    kept = net.head->forward(net.trunk->forward(x), y);
                    throw std::runtime_error("no such file");
                  });
                }),
                "");
      EXPECT_THAT(text_of([&] { trainer.step(with); }), HasSubstr("belongs to another step"));
    });
  }
}

TEST(ClassifiersInATrainer, ABackwardOfTheShardsOwnIsRefused) {
  after(2, [](Trainer& trainer, Net& net, const Job&) {
    EXPECT_THAT(text_of([&] {
                  trainer.step([&](Shard& shard) {
                    const auto [x, y] = samples_of(1, shard.index());
                    const auto loss = net.head->forward(net.trunk->forward(x).detach(), y);
                    loss.backward({}, /*retain_graph=*/true);
                    return shard.loss(loss + 0 * net.trunk->weight.sum());
                  });
                }),
                HasSubstr("return shard.loss(), and leave the backward to it"));
  });
}

TEST(ClassifiersInATrainer, StepsAboutDifferentModulesAreRefusedAndTrainingGoesOn) {
  after(2, [](Trainer& trainer, Net& net, const Job& job) {
    const auto compute = [&](Shard& shard) { return answer_of(shard, net); };
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  job.rank() == 0 ? trainer.step(*net.trunk, compute) : trainer.step(compute);
                }),
                HasSubstr("make this step about different modules"));
    // A module on the stack, and all of it.
    EXPECT_TRUE(trainer.step(net, compute).applied);
  });
}

TEST(ClassifiersInATrainer, AnEvaluationHasTheSameMetricsWhateverABatchCatchesAndTrainsNothing) {
  for (const int size : {1, 2}) {
    after(size, [](Trainer& trainer, Net& net, const Job&) {
      const auto evaluate = [&](const std::function<void(std::int64_t)>& batch) {
        return text_of<std::exception>([&] {
          trainer.evaluate(6, 1, [&](const std::vector<std::int64_t>& samples, ShardMetrics&) {
            batch(samples[0]);
          });
        });
      };
      const auto loss_of = [&](std::int64_t label) {
        return net.head->forward(net.trunk->forward(torch::ones({1, 6})), torch::tensor({label}));
      };
      EXPECT_NE(evaluate([&](std::int64_t sample) {
                  try {
                    loss_of(sample == 1 ? 40 : sample);
                  } catch (const Error&) {
                  }
                }),
                "");
      EXPECT_THAT(evaluate([&](std::int64_t sample) {
                    const c10::AutoGradMode recorded(true);
                    EXPECT_FALSE(loss_of(sample).requires_grad());
                  }),
                  "");
      EXPECT_THAT(evaluate([&](std::int64_t) {
                    trainer.step([&](Shard& shard) { return answer_of(shard, net); });
                  }),
                  HasSubstr("in evaluate() of Trainer"));
      EXPECT_THAT(
          text_of<std::exception>([&] { trainer.edit([&] { evaluate([](std::int64_t) {}); }); }),
          "");
      EXPECT_EQ(net.head->updates(), 0);
    });
  }
}

TEST(ClassifiersInATrainer, ASumThatOverflowsDropsTheStep) {
  for (const int size : {1, 2}) {
    after(size,
          [](Trainer& trainer, Net& net, const Job&) {
            const auto before = trainer.state_sha256();
            const auto report = trainer.step([&](Shard& shard) {
              // Of two samples one at least is not of the class that has all probability.
              const auto loss = net.head->forward(torch::full({2, kIn}, 1e19F),
                                                  torch::tensor({0, 1}, torch::kInt64));
              return shard.loss(loss * 1e19 + 0 * net.trunk->weight.sum());
            });
            EXPECT_FALSE(report.applied);
            EXPECT_THAT(
                report.dropped_because,
                HasSubstr("the gradient of \"head\", summed over the shards, is not finite"));
            EXPECT_EQ(trainer.state_sha256(), before);
          },
          {.reduction = LossReduction::sum});
  }
}

TEST(ClassifiersInATrainer, AStepAboutAnotherModelLeavesTheLayerAsItWas) {
  const auto trained = [](int size) {
    return text_of_rank_0(size, [&](const Job& job) {
      const Group group(job);
      struct Both : torch::nn::Module {
        explicit Both(const Group& group)
            : maker(register_module("maker", torch::nn::Linear(6, 6))),
              judge(register_module("judge", std::make_shared<Net>(group, Options{}))) {}
        torch::nn::Linear maker;
        std::shared_ptr<Net> judge;
      };
      torch::manual_seed(3);
      Both both(group);
      Trainer trainer(group, both, Sgd{.lr = 0.1}, {.shards = kShards, .clip = {.norm = 1}});
      const auto before = both.judge->head->sha256();
      const auto about = [&](torch::nn::Module& active) {
        return trainer.step(active, [&](Shard& shard) {
          const auto [x, y] = samples_of(1, shard.index());
          const auto made = both.maker->forward(x);
          return shard.loss(both.judge->head->forward(both.judge->trunk->forward(made), y));
        });
      };
      EXPECT_TRUE(about(*both.maker).applied);
      EXPECT_EQ(both.judge->head->sha256(), before);
      EXPECT_EQ(both.judge->head->updates(), 0);
      EXPECT_TRUE(about(*both.judge).applied);
      EXPECT_EQ(both.judge->head->updates(), 1);
      return trainer.state_sha256();
    });
  };
  const auto alone = trained(1);
  for (const int size : {2, 3}) EXPECT_EQ(trained(size), alone) << size;
}

TEST(ClassifiersInATrainer, ALayerOutlivesATrainerThatEndsBetweenTheHalves) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    Net net(group, {});
    {
      Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 2});
      trainer.accumulate([&](Shard& shard) { return answer_of(shard, net); });
    }
    net.head->forward(torch::ones({1, kIn}), torch::zeros({1}, torch::kInt64)).backward();
    net.head->step();
    EXPECT_EQ(net.head->updates(), 1);
  });
}

TEST(ClassifiersInATrainer, ShardsThatAreInOtherModesHaveTheSameBytes) {
  const auto trained = [](int size) {
    return after(size,
                 [](Trainer& trainer, Net& net, const Job&) {
                   trainer.step([&](Shard& shard) {
                     shard.index() % 2 == 0 ? net.head->train() : net.head->eval();
                     auto answer = answer_of(shard, net);
                     net.head->train();
                     return answer;
                   });
                 },
                 {.sample_rate = 0.3});
  };
  const auto alone = trained(1);
  for (const int size : {2, 3}) EXPECT_EQ(trained(size), alone) << size;
}

TEST(ShardsOfATrainer, AnotherThreadsCollectivesAreItsOwn) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const Group side = group.split(0, "side");
    torch::nn::Linear net(6, 2);
    Trainer trainer(group, *net, Sgd{.lr = 0.1}, {.shards = 2, .audit_every = 0});
    std::string text;
    trainer.step([&](Shard& shard) {
      std::thread other([&] {
        text = text_of([&] {
          double one = 1;
          side.all_reduce({&one, 1, DType::float64}, Reduction::sum);
        });
      });
      other.join();
      return shard.loss(net->forward(torch::ones({1, 6})).sum());
    });
    EXPECT_EQ(text, "");
  });
}

TEST(ShardsOfATrainer, CollectivesInAnEvaluationOrAnEditAreRefusedToo) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    torch::nn::Linear net(6, 2);
    Trainer trainer(group, *net, Sgd{.lr = 0.1}, {.shards = 2});
    EXPECT_THAT(text_of([&] {
                  trainer.evaluate(3, 1, [&](const std::vector<std::int64_t>&, ShardMetrics&) {
                    group.barrier();
                  });
                }),
                HasSubstr("barrier of group"));
    EXPECT_THAT(text_of([&] { trainer.edit([&] { group.barrier(); }); }), HasSubstr("edit()"));
    EXPECT_TRUE(trainer
                    .step([&](Shard& shard) {
                      return shard.loss(net->forward(torch::ones({1, 6})).sum());
                    })
                    .applied);
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
