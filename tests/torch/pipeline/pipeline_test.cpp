// What a Trainer with a pipeline takes, refuses, and survives.

#include "tutti/pipeline.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "support/log_capture.h"
#include "support/running_command.h"
#include "support/spread.h"
#include "torch/pipeline/pipeline_nets.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Four layers of one parameter each.
struct Chain : torch::nn::Module {
  explicit Chain(int layers = 4) {
    torch::manual_seed(2);
    for (int i = 0; i < layers; ++i) {
      linear.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(5, 5)));
    }
  }
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all;
    for (auto& one : linear) all.push_back(pipeline_layer(one));
    return all;
  }
  std::vector<torch::nn::Linear> linear;
};

torch::Tensor samples_of(std::int64_t step, std::int64_t shard) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * step + shard));
  return torch::randn({2, 5}, generator);
}

Pipeline pipeline_of(std::vector<PipelineLayer> layers, int stages, const char* kind = "1f1b") {
  return {.layers = std::move(layers), .stages = stages, .schedule = kind};
}

StepResult step_of(Trainer& trainer) {
  const auto step = trainer.steps();
  return trainer.step(
      [step](Shard& shard) -> TensorList { return {samples_of(step, shard.index())}; },
      [](Shard& shard, const TensorList& y) { return shard.loss(y[0].square().mean()); });
}

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

TEST(Pipeline, SpeedsAreThoseOfPipelines) {
  const auto plain = trained(1, {.shards = 6});
  EXPECT_EQ(trained(4, {.shards = 6, .speeds = {2, 1}, .pipeline = pipeline_of({}, 2)}), plain);
}

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
long shared_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stol(line.substr(9));
  }
  return -1;
}

TEST(Pipeline, ParametersKeepTheirPlacesAndStepsTakeNoMoreMemory) {
  for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
    on_workers(2, [&](const Job& job) {
      Chain chain;
      Trainer trainer(job, chain, Adam{.lr = 0.1},
                      {.shards = 8, .pipeline = pipeline_of(chain.layers(), 2, kind)});
      step_of(trainer);
      step_of(trainer);
      std::vector<const void*> places;
      for (const auto& parameter : chain.parameters()) places.push_back(parameter.data_ptr());
      const auto taken = shared_kib();
      for (int k = 0; k < 20; ++k) step_of(trainer);
      std::vector<const void*> after;
      for (const auto& parameter : chain.parameters()) after.push_back(parameter.data_ptr());
      EXPECT_EQ(after, places);
      EXPECT_EQ(shared_kib(), taken) << kind;
    });
  }
}

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

TEST(Pipeline, AModelBeyondTheLimitOfAWorkerTrainsOnTwoAndIsRefusedOnOne) {
  const auto of = [](int size, std::uint64_t limit) {
    return text_of_rank_0(size, [&](const Job& job) {
      Chain chain;
      return text_of<OutOfMemory>([&] {
        Trainer trainer(
            job, chain, Adam{.lr = 0.1},
            {.shards = 4, .pipeline = pipeline_of(chain.layers(), size), .memory_limit = limit});
        EXPECT_TRUE(step_of(trainer).applied);
      });
    });
  };
  EXPECT_EQ(of(2, 4096), "");
  EXPECT_EQ(
      of(1, 4096),
      "parameters and optimizer state of \"model\" are 8 KiB, 8 KiB for each of 1 workers of a "
      "host, and memory_limit is 4 KiB: 2 workers of a host would do");
  EXPECT_THAT(of(2, 1), HasSubstr("workers of a host would do"));
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

// ---- what is refused ----

std::string refusal_of(int size, const std::function<void(Pipeline&, TrainerOptions&)>& change) {
  return text_of_rank_0(size, [&](const Job& job) {
    Chain chain;
    TrainerOptions options{.shards = 4};
    auto pipeline = pipeline_of(chain.layers(), 2);
    change(pipeline, options);
    options.pipeline = pipeline;
    return text_of([&] { Trainer(job, chain, Sgd{}, options); });
  });
}

TEST(PipelineRefusals, WhatMakesNoSenseIsSaidWhenTheTrainerIsMade) {
  const auto with = [](const std::function<void(Pipeline&)>& change, int size = 2) {
    return refusal_of(size, [&](Pipeline& pipeline, TrainerOptions&) { change(pipeline); });
  };
  EXPECT_EQ(with([](Pipeline& p) { p.stages = 5; }),
            "a pipeline of 5 stages and 4 layers: a stage has at least one layer, and there is at "
            "least one stage");
  EXPECT_THAT(with([](Pipeline& p) { p.stages = 0; }), HasSubstr("of 0 stages"));
  EXPECT_THAT(with([](Pipeline& p) { p.layers.clear(); }), HasSubstr("and 0 layers"));
  EXPECT_EQ(with([](Pipeline& p) { p.layers[2] = nullptr; }),
            "layer 2 of the pipeline is an empty function");
  EXPECT_EQ(with([](Pipeline& p) { p.workers = 3; }),
            "3 workers of a pipeline of 2 stages: each has at least one");
  EXPECT_THAT(with([](Pipeline& p) {
                p.cuts = {2, 3};
              }),
              HasSubstr("cuts [2, 3] of 4 layers into 2 stages"));
  EXPECT_THAT(with([](Pipeline& p) { p.cuts = {4}; }), HasSubstr("cuts [4] of 4 layers"));
  EXPECT_THAT(with([](Pipeline& p) { p.schedule = "2f2b"; }), HasSubstr("2f2b"));
  EXPECT_EQ(with([](Pipeline&) {}, 3), "3 workers for pipelines of 2: start a multiple of 2");
  EXPECT_THAT(with([](Pipeline& p) {
                p.stages = 4;
                p.workers = 2;
                p.schedule = "interleaved";
              }),
              "");
  // Three shards of a pipeline are no multiple of its two workers.
  EXPECT_THAT(refusal_of(2,
                         [](Pipeline& p, TrainerOptions& options) {
                           options.shards = 3;
                           p.stages = 4;
                           p.workers = 2;
                           p.schedule = "interleaved";
                         }),
              HasSubstr("3 micro-batches on 2 workers: must be a multiple of the workers; 2 or "
                        "4 would do"));
  EXPECT_THAT(
      with([](Pipeline& p) { p.own_schedule = [](int) { return PipelineSchedule::gpipe(2, 7); }; }),
      HasSubstr("where 2 stages on 2 workers have 4 shards"));
}

TEST(PipelineRefusals, OptionsThatDoNotGoWithOneAreNamed) {
  const auto with = [](const std::function<void(TrainerOptions&)>& change) {
    return refusal_of(2, [&](Pipeline&, TrainerOptions& options) { change(options); });
  };
  EXPECT_THAT(with([](TrainerOptions& o) { o.compression.codec = half_codec(); }),
              HasSubstr("a codec with a pipeline"));
  EXPECT_THAT(with([](TrainerOptions& o) {
                o.logical_workers = 2;
                o.averaging = local_sgd(2);
              }),
              HasSubstr("averaging with a pipeline"));
  EXPECT_THAT(with([](TrainerOptions& o) {
                o.logical_workers = 2;
                o.per_replica = [](const std::string&) { return true; };
              }),
              HasSubstr("per-replica parameters with a pipeline"));
  EXPECT_THAT(with([](TrainerOptions& o) {
                o.speeds = {1, 2};
              }),
              HasSubstr("2 speeds for 1 pipelines"));
}

TEST(PipelineRefusals, PipelinesThatDifferOnWorkersAreAMismatch) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    auto pipeline = pipeline_of(chain.layers(), 2);
    if (job.rank() == 1) pipeline.cuts = {1};
    const auto text =
        text_of([&] { Trainer(job, chain, Sgd{}, {.shards = 4, .pipeline = pipeline}); });
    EXPECT_THAT(text, HasSubstr("pipeline"));
    EXPECT_THAT(text, AllOf(HasSubstr("[0, 2, 4]"), HasSubstr("[0, 1, 4]")));
  });
}

TEST(PipelineRefusals, AStepTakesTheClosuresThatTheTrainerIsMadeFor) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    Trainer plain(Group(job, "plain"), chain, Sgd{}, {.shards = 2, .name = "plain"});
    EXPECT_THAT(text_of([&] { step_of(plain); }),
                HasSubstr("step(inputs, loss) is for a Trainer whose options have a pipeline"));
    Chain other;
    Trainer trainer(Group(job, "staged"), other, Sgd{},
                    {.shards = 2, .name = "staged", .pipeline = pipeline_of(other.layers(), 2)});
    EXPECT_THAT(text_of([&] { trainer.step([](Shard& shard) { return shard.nothing(); }); }),
                HasSubstr("a step takes two closures"));
    EXPECT_TRUE(step_of(trainer).applied);
  });
}

// ---- what fails ----

TEST(PipelineFailures, AStageThatThrowsDropsTheStepOnAllAndTheNextOneGoesOn) {
  for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int culprit : {0, 1, 2, 3}) {
      on_workers(4, [&](const Job& job) {
        Chain chain;
        bool fails = true;
        auto layers = chain.layers();
        layers[1] = [&, layer = layers[1]](const TensorList& in) {
          if (fails && job.rank() == culprit) throw std::runtime_error("no such word");
          return layer(in);
        };
        layers[3] = [&, layer = layers[3]](const TensorList& in) {
          if (fails && job.rank() == culprit) throw std::runtime_error("no such word");
          return layer(in);
        };
        Trainer trainer(job, chain, Adam{},
                        {.shards = 6, .pipeline = pipeline_of(layers, 2, kind)});
        const auto before = trainer.state_sha256();
        if (job.rank() == culprit) {
          EXPECT_EQ(text_of<std::runtime_error>([&] { step_of(trainer); }), "no such word");
        } else {
          EXPECT_THAT(text_of<PeerFailed>([&] { step_of(trainer); }),
                      AllOf(HasSubstr("rank " + std::to_string(culprit) + " failed: no such word"),
                            HasSubstr("the step is dropped by all workers")));
        }
        EXPECT_EQ(trainer.state_sha256(), before);
        fails = false;
        EXPECT_TRUE(step_of(trainer).applied);
        EXPECT_NE(trainer.state_sha256(), before);
      });
    }
  }
}

TEST(PipelineFailures, ClosuresThatThrowDropTheStepOnAll) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    Trainer trainer(job, chain, Sgd{.lr = 0.1},
                    {.shards = 4, .pipeline = pipeline_of(chain.layers(), 2)});
    const auto x = [](Shard& shard) -> TensorList { return {samples_of(0, shard.index())}; };
    const auto loss = [](Shard& shard, const TensorList& y) {
      return shard.loss(y[0].square().mean());
    };
    const auto text = text_of<std::exception>([&] {
      trainer.step(
          [&](Shard& shard) -> TensorList {
            if (shard.index() == 2) throw std::runtime_error("the file ends");
            return x(shard);
          },
          loss);
    });
    EXPECT_THAT(text, HasSubstr("the file ends"));
    EXPECT_THAT(
        text_of([&] { trainer.step(x, [](Shard&, const TensorList&) { return ShardAnswer(); }); }),
        HasSubstr("its closure gave no answer"));
    EXPECT_THAT(text_of([&] {
                  trainer.step(x,
                               [](Shard& shard, const TensorList&) { return shard.gradients({}); });
                }),
                HasSubstr("shard.gradients() in a pipeline"));
    EXPECT_THAT(text_of([&] {
                  trainer.step(x, [&](Shard& shard, const TensorList& y) {
                    shard.state("hidden", [] { return torch::zeros({1}); });
                    return loss(shard, y);
                  });
                }),
                HasSubstr("a state (\"hidden\") in a pipeline"));
    EXPECT_THAT(text_of([&] {
                  trainer.step(
                      [&](Shard& shard) {
                        shard.metrics().sum("n", 1);
                        return x(shard);
                      },
                      [&](Shard& shard, const TensorList& y) {
                        shard.metrics().sum("n", 1);
                        return loss(shard, y);
                      });
                }),
                HasSubstr("metric \"n\" is recorded where a shard begins and where it ends"));
    EXPECT_THAT(text_of([&] {
                  trainer.step(
                      [&](Shard& shard) {
                        if (shard.index() != 1) shard.indices(40, 2);
                        return x(shard);
                      },
                      loss);
                }),
                HasSubstr("3 of 4 shards asked for data"));
    EXPECT_EQ(trainer.steps(), 0);
    EXPECT_TRUE(trainer.step(x, loss).applied);
  });
}

TEST(PipelineFailures, ALayerThatCannotTakeWhatItGetsNamesBothStages) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    auto layers = chain.layers();
    layers[1] = [](const TensorList& in) -> TensorList { return {in[0].narrow(1, 0, 3)}; };
    Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline_of(layers, 2)});
    EXPECT_THAT(text_of([&] { step_of(trainer); }),
                HasSubstr("layer 2 of stage 1 (layers 2 to 3) in shard 0, to which stage 0 has "
                          "given Float [2, 3]"));
    EXPECT_THAT(text_of([&] { step_of(trainer); }),
                HasSubstr(job.rank() == 0 ? "rank 1 failed: layer 2" : "layer 2"));
  });
}

TEST(PipelineFailures, AStageThatDiesIsLostForAll) {
  const auto outcome = run_process_ranks(3, [](const Job& job) {
    at::set_num_threads(1);
    Chain chain;
    auto layers = chain.layers();
    layers[1] = [&job, layer = layers[1]](const TensorList& in) {
      if (job.rank() == 1) raise(SIGKILL);
      return layer(in);
    };
    Trainer trainer(job, chain, Sgd{}, {.shards = 4, .pipeline = pipeline_of(layers, 3)});
    EXPECT_THAT(text_of<PeerLost>([&] { step_of(trainer); }), HasSubstr("rank 1"));
  });
  EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
  EXPECT_TRUE(outcome.ranks[0].good() && outcome.ranks[2].good()) << outcome.describe();
}

TEST(PipelineFailures, ABufferThatTwoStagesChangeIsRefused) {
  on_workers(2, [](const Job& job) {
    struct Counted : Chain {
      torch::Tensor count = register_buffer("count", torch::zeros({1}));
    } chain;
    auto layers = chain.layers();
    for (const std::size_t k : {0U, 3U}) {
      layers[k] = [&chain, layer = layers[k]](const TensorList& in) {
        chain.count += 1;
        return layer(in);
      };
    }
    Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline_of(layers, 2)});
    EXPECT_THAT(text_of([&] { step_of(trainer); }),
                HasSubstr("buffer \"count\" of Trainer \"model\" is changed by two stages"));
    EXPECT_EQ(chain.count.item<float>(), 0);
  });
}

TEST(PipelineFailures, AnOverflowDropsTheStepOnAllAndShrinksTheLossScale) {
  const auto of = [](int size, bool in_stages) {
    return text_of_rank_0(size, [&](const Job& job) {
      Chain chain;
      TrainerOptions options{.shards = 4, .loss_scale = {.start = 64, .dynamic = true}};
      if (in_stages) options.pipeline = pipeline_of(chain.layers(), 2);
      Trainer trainer(job, chain, Sgd{.lr = 0.1}, options);
      std::string text;
      for (int step = 0; step < 3; ++step) {
        const auto loss = [&](Shard& shard, const torch::Tensor& y) {
          const bool bursts = step == 1 && shard.index() == 2;
          return shard.loss((y * (bursts ? 1e38F : 1.0F)).square().mean());
        };
        const auto result =
            in_stages
                ? trainer.step(
                      [&](Shard& shard) -> TensorList { return {samples_of(step, shard.index())}; },
                      [&](Shard& shard, const TensorList& y) { return loss(shard, y[0]); })
                : trainer.step([&](Shard& shard) {
                    auto x = samples_of(step, shard.index());
                    for (auto& linear : chain.linear) x = linear->forward(x);
                    return loss(shard, x);
                  });
        text += std::to_string(result.applied) + " " + std::to_string(result.loss_scale) + " " +
                result.dropped_because + "\n";
      }
      return text + parameters_sha256(chain);
    });
  };
  const auto plain = of(1, false);
  EXPECT_THAT(plain, HasSubstr("0 64"));
  EXPECT_EQ(of(2, true), plain);
}

}  // namespace
}  // namespace tutti::test::pipeline_cases
