// What fails in a step of a Trainer with a pipeline, and what is said of it.

#include <signal.h>

#include <stdexcept>

#include "support/log_capture.h"
#include "torch/pipeline/chain.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// promise: trainer.h#step
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

// promise: trainer.h#step
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

std::string failure_of(int size, Pipeline pipeline) {
  return text_of_rank_0(size, [&](const Job& job) {
    Chain chain;
    auto layers = chain.layers();
    for (std::size_t k = 0; k < layers.size(); ++k) {
      if (!pipeline.layers[k]) pipeline.layers[k] = layers[k];
    }
    Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline});
    return text_of([&] { step_of(trainer); });
  });
}

// promise: trainer.h#step
TEST(PipelineFailures, ALayerThatFailsIsNamedInEveryStageAndWithWhatItWasGiven) {
  auto pipeline = pipeline_of({{}, {}, {}, {}}, 2);
  pipeline.layers[0] = [](const TensorList& in) -> TensorList { return {in[0].view({7})}; };
  EXPECT_THAT(failure_of(2, pipeline),
              AllOf(HasSubstr("layer 0 of stage 0 (layers 0 to 1) in shard 0, to which the first "
                              "closure has given Float [2, 5]: "),
                    Not(HasSubstr("Exception raised from")), Not(HasSubstr("frame #"))));
  pipeline.layers[0] = {};
  pipeline.layers[1] = [](const TensorList& in) -> TensorList { return {in.at(1)}; };
  EXPECT_THAT(failure_of(2, pipeline),
              HasSubstr("layer 1 of stage 0 (layers 0 to 1) in shard 0, to "
                        "which layer 0 has given Float [2, 5]: "));
  pipeline.layers[1] = [](const TensorList&) -> TensorList { return {}; };
  pipeline.layers[2] = [](const TensorList& in) -> TensorList { return {in.at(0)}; };
  pipeline.cuts = {2, 3};
  pipeline.stages = 3;
  EXPECT_THAT(failure_of(3, pipeline),
              HasSubstr("rank 1 failed: layer 2 of stage 1 (layer 2) in shard 0, to which stage 0 "
                        "has given no tensor: "));
}

TEST(PipelineFailures, WhatLibtorchSaysReachesOthersWithoutItsCalls) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline_of(chain.layers(), 2)});
    const auto text = text_of<std::exception>([&] {
      trainer.step(
          [](Shard&) -> TensorList {
            return {torch::ones({2, 5}).view({3})};
          },
          [](Shard& shard, const TensorList&) { return shard.nothing(); });
    });
    EXPECT_THAT(text, HasSubstr("shape '[3]' is invalid"));
    EXPECT_EQ(text.find("Exception raised from") == std::string::npos, job.rank() == 1);
  });
}

TEST(PipelineFailures, ATensorOfAnotherStageOrShardThatALayerKeepsIsRefused) {
  for (const int workers : {1, 2}) {
    on_workers(workers, [&](const Job& job) {
      Chain chain;
      auto layers = chain.layers();
      torch::Tensor kept;
      layers[2] = [&, layer = layers[2]](const TensorList& in) -> TensorList {
        const auto y = layer(in)[0];
        const auto z = kept.defined() ? y + kept : y;
        kept = y;
        return {z};
      };
      auto pipeline = pipeline_of(layers, 2);
      pipeline.workers = workers;
      Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline});
      EXPECT_THAT(
          text_of([&] { step_of(trainer); }),
          HasSubstr("stage 1 (layers 2 to 3) in shard 1 reads a tensor with a gradient that "
                    "another stage, shard or step has computed"));
    });
  }
}

/// Gives a view beside the tensor; `change` is what the layer behind does to the tensor.
std::string sharing(int workers, int hands_on,
                    const std::function<void(const TensorList&)>& change) {
  auto pipeline = pipeline_of({{}, {}, {}, {}}, 4);
  pipeline.workers = workers;
  pipeline.layers[0] = [](const TensorList& in) -> TensorList {
    const auto y = in[0] * 2;
    return {y, y.view({5, 2}), y.narrow(0, 0, 1), y.narrow(0, 1, 1)};
  };
  for (int k = 1; k < 3; ++k) {
    const bool changes = k == hands_on + 1;
    pipeline.layers[static_cast<std::size_t>(k)] = [=](const TensorList& in) -> TensorList {
      if (changes) change(in);
      return in;
    };
  }
  return failure_of(workers, pipeline);
}

// promise: pipeline.h#PipelineLayer
TEST(PipelineFailures, AChangeOfWhatSharedMemoryBeforeACutIsRefused) {
  const auto first = [](const TensorList& in) { in[0].mul_(3); };
  const auto none = [](const TensorList&) {};
  for (const int hands_on : {0, 1}) {
    EXPECT_THAT(sharing(4, hands_on, first),
                HasSubstr("changes in place a tensor that it was given, Float [2, 5], which shared "
                          "memory with another one"));
    EXPECT_EQ(sharing(4, hands_on, none), "");
  }
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
    const LogCapture log;
    EXPECT_THAT(text_of<PeerLost>([&] { step_of(trainer); }), HasSubstr("rank 1"));
    EXPECT_EQ(log.count("nobody waited"), 0);
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
    EXPECT_THAT(
        text_of([&] { step_of(trainer); }),
        HasSubstr("buffer \"count\" is changed by stage 1 (layers 2 to 3) in shard 0, and by "
                  "a stage before it"));
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
