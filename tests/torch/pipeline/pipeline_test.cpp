// What a Trainer with a pipeline takes, shows and keeps.

#include "tutti/pipeline.h"

#include <filesystem>
#include <fstream>

#include "support/running_command.h"
#include "support/spread.h"
#include "torch/pipeline/chain.h"
#include "torch/pipeline/pipeline_nets.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string trained(int size, const TrainerOptions& given, int steps = 3) {
  return text_of_rank_0(size, [&](const Job& job) {
    Chain chain;
    auto options = given;
    if (options.pipeline) options.pipeline->layers = chain.layers();
    Trainer trainer(job, chain, Adam{.lr = 0.1}, options);
    for (int step = 0; step < steps; ++step) {
      const auto result = options.pipeline ? step_of(trainer) : trainer.step([&](Shard& shard) {
        auto x = samples_of(step, shard.index());
        for (auto& linear : chain.linear) x = linear->forward(x);
        return shard.loss(x.square().mean());
      });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      EXPECT_EQ(result.report.collectives, 1);
      EXPECT_EQ(result.shards, options.shards);
    }
    return parameters_sha256(chain) + trainer.state_sha256();
  });
}

// promise: pipeline.h#Pipeline
TEST(Pipeline, UnevenNumbersOfShardsAndPipelinesWithoutOneKeepTheBytes) {
  for (const std::int64_t shards : {1, 3, 5}) {
    const auto plain = trained(1, {.shards = shards});
    for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
      EXPECT_EQ(trained(4, {.shards = shards, .pipeline = pipeline_of({}, 2, kind)}), plain)
          << shards << " " << kind;
    }
    EXPECT_EQ(trained(3, {.shards = shards, .pipeline = Pipeline{.stages = 3, .workers = 1}}),
              plain);
  }
}

// promise: pipeline.h#Pipeline, pipeline.h#cuts, pipeline.h#own_schedule
TEST(Pipeline, CutsAndAnOrderOfTheProgramsOwnDecideNoBit) {
  const auto plain = trained(1, {.shards = 4});
  auto cut = pipeline_of({}, 2);
  cut.cuts = {3};
  EXPECT_EQ(trained(2, {.shards = 4, .pipeline = cut}), plain);
  auto own = pipeline_of({}, 2);
  own.own_schedule = [](int shards) {
    std::vector<std::vector<StageAction>> actions(2);
    for (int m = 0; m < shards; ++m) {
      actions[0].push_back({StageWork::forward, 0, m});
      actions[1].push_back({StageWork::forward, 1, m});
      actions[1].push_back({StageWork::backward_input, 1, m});
      actions[0].push_back({StageWork::backward, 0, m});
    }
    for (int m = 0; m < shards; ++m) actions[1].push_back({StageWork::backward_weight, 1, m});
    return PipelineSchedule::custom("late", 2, shards, actions);
  };
  EXPECT_EQ(trained(2, {.shards = 4, .pipeline = own}), plain);
}

// promise: pipeline.h#workers, trainer_options.h#speeds
TEST(Pipeline, SpeedsAreThoseOfPipelines) {
  const auto plain = trained(1, {.shards = 6});
  EXPECT_EQ(trained(4, {.shards = 6, .speeds = {2, 1}, .pipeline = pipeline_of({}, 2)}), plain);
}

// promise: pipeline.h#Pipeline
TEST(Pipeline, EveryWorkerReadsTheWholeModelAndEachShardIsOneForward) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    std::vector<int> calls(4);
    auto layers = chain.layers();
    for (std::size_t k = 0; k < layers.size(); ++k) {
      layers[k] = [&calls, k, layer = layers[k]](const TensorList& in) {
        ++calls[k];
        return layer(in);
      };
    }
    Trainer trainer(job, chain, Sgd{.lr = 0.1}, {.shards = 4, .pipeline = pipeline_of(layers, 2)});
    step_of(trainer);
    const bool is_first = job.rank() == 0;
    EXPECT_EQ(calls, (is_first ? std::vector<int>{4, 4, 0, 0} : std::vector<int>{0, 0, 4, 4}));
    // All parameters are those of the step on both workers.
    const Group group(job, "test");
    auto sum = torch::zeros({1});
    for (const auto& parameter : chain.parameters()) sum += parameter.detach().sum();
    const auto all = all_gather(group, sum);
    EXPECT_EQ(all[0].item<float>(), all[1].item<float>());
    const auto metrics = trainer.evaluate(4, 2, [&](const auto& indices, ShardMetrics& metrics) {
      auto x = samples_of(9, 0);
      for (auto& linear : chain.linear) x = linear->forward(x);
      metrics.mean("y", x.mean().template item<double>() * static_cast<double>(indices.size()));
    });
    EXPECT_TRUE(std::isfinite(metrics["y"]));
  });
}

TEST(Pipeline, TheHalvesOfAStepShowTheGradientOfTheUnsplitRun) {
  const auto of = [](int size, bool in_stages) {
    return text_of_rank_0(size, [&](const Job& job) {
      Chain chain;
      TrainerOptions options{.shards = 3};
      if (in_stages) options.pipeline = pipeline_of(chain.layers(), 2);
      Trainer trainer(job, chain, Sgd{.lr = 0.1}, options);
      if (in_stages) {
        trainer.accumulate(
            [](Shard& shard) -> TensorList { return {samples_of(0, shard.index())}; },
            [](Shard& shard, const TensorList& y) { return shard.loss(y[0].square().mean()); });
      } else {
        trainer.accumulate([&](Shard& shard) {
          auto x = samples_of(0, shard.index());
          for (auto& linear : chain.linear) x = linear->forward(x);
          return shard.loss(x.square().mean());
        });
      }
      const auto first = trainer.gradient("linear0.weight");
      const auto norm = trainer.gradient_norm();
      EXPECT_TRUE(trainer.apply().applied);
      std::ostringstream text;
      text.precision(17);
      text << first.sum().item<double>() << " " << norm << parameters_sha256(chain);
      return text.str();
    });
  };
  EXPECT_EQ(of(2, true), of(1, false));
}

// promise: pipeline.h#pipeline_layer
TEST(Pipeline, ALayerOfAModuleHandsTheOtherTensorsThrough) {
  const torch::nn::Linear linear(5, 2);
  const auto layer = pipeline_layer(linear);
  const TensorList in = {torch::randn({3, 5}), torch::ones({1}), {}};
  const auto out = layer(in);
  ASSERT_EQ(out.size(), 3U);
  EXPECT_EQ(out[0].sizes(), (std::vector<std::int64_t>{3, 2}));
  EXPECT_TRUE(out[1].is_same(in[1]));
  EXPECT_FALSE(out[2].defined());
}

/// A worker's resident shared memory, in KiB: pages of arenas that it has touched.
// promise: trainer.h#step, trainer_options.h#pipeline
TEST(Pipeline, CheckpointsAreWholeAndAreResumedWithOtherStages) {
  const TemporaryFolder folder;
  const auto run = [&](int size, std::optional<Pipeline> shape, int from, int to) {
    return text_of_rank_0(size, [&](const Job& job) {
      StagedNet net;
      TrainerOptions options{.shards = 6, .seed = 3, .ema_decay = 0.5};
      auto layers = net.layers();
      if (shape) {
        options.pipeline = shape;
        options.pipeline->layers = layers;
      }
      Trainer trainer(job, net, Adam{.lr = 0.01}, options);
      if (from > 0) {
        EXPECT_EQ(trainer.load(folder.file("run")), from);
      }
      const auto words = [](Shard& shard) {
        const auto indices = shard.indices(60, 2);
        return words_of(indices.empty() ? 0 : indices[0], shard.index());
      };
      while (trainer.steps() < to) {
        if (shape) {
          trainer.step([&](Shard& shard) -> TensorList { return {words(shard).first}; },
                       [&](Shard& shard, const TensorList& y) {
                         return loss_of(shard, y[0], words(shard).second);
                       });
        } else {
          trainer.step([&](Shard& shard) {
            const auto [in, next] = words(shard);
            TensorList values = {in};
            for (auto& layer : layers) values = layer(values);
            return loss_of(shard, values[0], next);
          });
        }
      }
      trainer.save(folder.file("run"));
      return trainer.state_sha256();
    });
  };
  const auto expected = run(1, {}, 0, 7);
  std::filesystem::remove_all(folder.file("run"));
  run(3, pipeline_of({}, 3), 0, 2);
  run(2, pipeline_of({}, 2, "zb-h1"), 2, 3);
  run(4, pipeline_of({}, 2), 3, 5);
  run(2, {}, 5, 6);
  EXPECT_EQ(run(1, pipeline_of({}, 1), 6, 7), expected);
}

// promise: step_report.h#stage_bytes, step_report.h#tied_bytes
TEST(Pipeline, WhatStagesGiveOneAnotherIsReportedApart) {
  on_workers(2, [](const Job& job) {
    StagedNet net;
    Trainer trainer(job, net, Sgd{.lr = 0.1},
                    {.shards = 4, .pipeline = pipeline_of(net.layers(), 2)});
    const auto step = [&] {
      return trainer
          .step([](Shard& shard) -> TensorList { return {words_of(0, shard.index()).first}; },
                [](Shard& shard, const TensorList& y) {
                  return loss_of(shard, y[0], words_of(0, shard.index()).second);
                })
          .report;
    };
    const auto first = step();
    const auto second = step();
    EXPECT_EQ(first.stage_bytes, second.stage_bytes);
    // The second stage gives the gradient of the embedding's weight for each shard.
    const std::size_t tied = 4 * kWords * kInner * sizeof(float);
    EXPECT_EQ(first.tied_bytes, job.rank() == 1 ? tied : 0);
    EXPECT_GT(first.stage_bytes, first.tied_bytes);
    EXPECT_EQ(first.collectives, 1);
  });
}

// promise: launcher#where-the-time-goes
TEST(Pipeline, ATimelineHasEachComputeOfItsWorker) {
  const TemporaryFolder folder;
  setenv("TUTTI_PROFILE", folder.file("trace").c_str(), 1);
  on_workers(2, [](const Job& job) {
    Chain chain;
    Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline_of(chain.layers(), 2)});
    step_of(trainer);
  });
  unsetenv("TUTTI_PROFILE");
  for (const int rank : {0, 1}) {
    std::ifstream file(folder.file("trace") + ".rank" + std::to_string(rank));
    const std::string trace{std::istreambuf_iterator<char>(file), {}};
    for (const auto work : {StageWork::forward, StageWork::backward}) {
      for (const int shard : {0, 1}) {
        EXPECT_THAT(trace, HasSubstr("\"" + tutti::text_of(StageAction{work, rank, shard}) + "\""));
        EXPECT_THAT(trace, Not(HasSubstr("\"" + tutti::text_of(StageAction{work, 1 - rank, shard}) +
                                         "\"")));
      }
    }
  }
}

/// 10 samples a step of 5 shards: of 23, the last step of an epoch leaves three shards nothing.
// promise: trainer.h#step
TEST(Pipeline, AnEpochsLastShardsMayHaveNoDataAndBothClosuresMayAsk) {
  const auto of = [](int size, const std::optional<Pipeline>& shape, bool loss_asks) {
    return text_of_rank_0(size, [&](const Job& job) {
      Chain chain;
      TrainerOptions options{.shards = 5, .seed = 4, .pipeline = shape};
      if (shape) options.pipeline->layers = chain.layers();
      Trainer trainer(job, chain, Adam{.lr = 0.1}, options);
      const auto x = [](const std::vector<std::int64_t>& indices) {
        std::vector<torch::Tensor> rows;
        for (const auto index : indices) rows.push_back(samples_of(0, index)[0]);
        return torch::stack(rows);
      };
      std::string text;
      while (trainer.epoch() < 2) {
        const auto result =
            shape
                ? trainer.step(
                      [&](Shard& shard) -> TensorList {
                        const auto indices = shard.indices(23, 2);
                        return indices.empty() ? TensorList() : TensorList{x(indices)};
                      },
                      [&](Shard& shard, const TensorList& y) {
                        if (loss_asks) {
                          const auto rows = static_cast<std::int64_t>(shard.indices(23, 2).size());
                          EXPECT_EQ(rows, y[0].size(0));
                        }
                        return shard.loss(y[0].square().mean(), static_cast<double>(y[0].size(0)));
                      })
                : trainer.step([&](Shard& shard) {
                    const auto indices = shard.indices(23, 2);
                    if (indices.empty()) return shard.nothing();
                    auto y = x(indices);
                    for (auto& linear : chain.linear) y = linear->forward(y);
                    return shard.loss(y.square().mean(), static_cast<double>(y.size(0)));
                  });
        text += std::to_string(result.shards) + " ";
      }
      return text + trainer.state_sha256();
    });
  };
  const auto plain = of(1, {}, false);
  EXPECT_THAT(plain, HasSubstr("5 5 2 5 5 2 "));
  for (const bool loss_asks : {false, true}) {
    for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
      EXPECT_EQ(of(2, Pipeline{.stages = 2, .schedule = kind}, loss_asks), plain);
    }
    EXPECT_EQ(of(3, Pipeline{.stages = 3}, loss_asks), plain);
    EXPECT_EQ(of(4, Pipeline{.stages = 2}, loss_asks), plain);
    EXPECT_EQ(of(1, Pipeline{.stages = 2, .workers = 1}, loss_asks), plain);
  }
}

/// A shard that says it has no data has to have asked for it, if others do.
TEST(Pipeline, AShardThatGivesNothingUnaskedWouldLoseItsSamples) {
  for (const int workers : {1, 2}) {
    on_workers(workers, [&](const Job& job) {
      Chain chain;
      auto pipeline = pipeline_of(chain.layers(), 2);
      pipeline.workers = workers;
      Trainer trainer(job, chain, Sgd{}, {.shards = 4, .pipeline = pipeline});
      const auto ask = [](Shard& shard) { return shard.indices(40, 2); };
      EXPECT_THAT(text_of([&] {
                    trainer.step(
                        [&](Shard& shard) -> TensorList {
                          if (shard.index() == 1) return {};
                          ask(shard);
                          return {samples_of(0, shard.index())};
                        },
                        [&](Shard& shard, const TensorList& y) {
                          ask(shard);
                          return shard.loss(y[0].square().mean());
                        });
                  }),
                  HasSubstr("3 of 4 shards asked for data"));
    });
  }
}

/// Stage 0 goes forward with all shards first, and what comes back meanwhile has to be taken.
TEST(Pipeline, AnOrderInWhichManyMessagesAreUnderWayEndsNonetheless) {
  const auto plain = trained(1, {.shards = 40}, 1);
  auto own = pipeline_of({}, 2);
  own.own_schedule = [](int shards) {
    std::vector<std::vector<StageAction>> actions(2);
    for (int m = 0; m < shards; ++m) actions[0].push_back({StageWork::forward, 0, m});
    for (int m = 0; m < shards; ++m) actions[0].push_back({StageWork::backward, 0, m});
    for (int m = 0; m < shards; ++m) {
      actions[1].push_back({StageWork::forward, 1, m});
      actions[1].push_back({StageWork::backward, 1, m});
    }
    return PipelineSchedule::custom("mixed", 2, shards, actions);
  };
  EXPECT_EQ(trained(2, {.shards = 40, .pipeline = own}, 1), plain);
  const Spread spread(2);
  EXPECT_EQ(trained(2, {.shards = 40, .pipeline = own}, 1), plain);
}

}  // namespace
}  // namespace tutti::test::pipeline_cases
