// Shards that take different paths through the layers, by their data.

#include <functional>

#include "torch/pipeline/chain.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Which of four layers read the parameter, and the row-sparse table, in a shard of a step, and
/// which change the buffers: a bit for each layer.
struct Path {
  std::int64_t reads = 0;
  std::int64_t changes = 0;
};
using PathOf = std::function<Path(std::int64_t step, std::int64_t shard)>;

struct Wandering : Chain {
  Wandering() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 5).sparse(true)));
    w = register_parameter("w", torch::randn({5}));
    scale = register_buffer("scale", torch::full({5}, 2.0));
    count = register_buffer("count", torch::zeros({}, torch::kLong));
  }
  std::vector<PipelineLayer> paths() {
    auto all = layers();
    for (std::size_t l = 0; l < all.size(); ++l) {
      all[l] = [this, l, layer = all[l]](const TensorList& in) -> TensorList {
        const auto path = in[1].item<std::int64_t>();
        auto x = layer({in[0]})[0];
        if ((path >> l & 1) != 0)
          x = torch::tanh(x * w + table->forward(in[1] % 7 + torch::arange(2)));
        if ((path >> (4 + l) & 1) != 0) {
          const torch::NoGradGuard no_grad;
          scale.mul_(0.9).add_(x.abs().mean(0));
          count.add_(1 + path % 5);
        }
        return {x / scale.clone(), in[1]};  // another layer may change it
      };
    }
    return all;
  }
  torch::nn::Embedding table{nullptr};
  torch::Tensor w;
  torch::Tensor scale;
  torch::Tensor count;
};

struct Case {
  int size = 1;
  int shards = 4;
  PathOf path;
  bool shared = false;
};

/// The state after three steps, with the texts of those that were refused.
std::string run(const Case& one, const std::optional<Pipeline>& shape) {
  return text_of_rank_0(one.size, [&](const Job& job) {
    Wandering model;
    const auto layers = model.paths();
    TrainerOptions options{.shards = one.shards, .seed = 3, .pipeline = shape, .audit_every = 0};
    if (shape) {
      options.pipeline->layers = layers;
      if (one.shared) options.pipeline->shared = {model.w, model.table->weight};
    }
    Trainer trainer(job, model, Adam{.lr = 0.1}, options);
    std::string text;
    for (int step = 0; step < 3; ++step) {
      const auto inputs = [&](Shard& shard) -> TensorList {
        const auto path = one.path(step, shard.index());
        return {samples_of(step, shard.index()), torch::tensor(path.reads | path.changes << 4)};
      };
      const auto loss = [](Shard& shard, const TensorList& y) {
        return shard.loss(y[0].square().mean(), 1.0 + static_cast<double>(shard.index() % 3));
      };
      try {
        if (shape) {
          trainer.step(inputs, loss);
        } else {
          trainer.step([&](Shard& shard) {
            auto values = inputs(shard);
            for (const auto& layer : layers) values = layer(values);
            return loss(shard, values);
          });
        }
      } catch (const Error& error) {
        text += std::string(error.what()) + "\n";
      }
    }
    return text + trainer.state_sha256();
  });
}

/// Ways of computing the shards of a step, whose number is a multiple of four.
std::vector<std::pair<int, Pipeline>> shapes() {
  std::vector<std::pair<int, Pipeline>> all;
  for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int stages : {2, 3, 4}) {
      all.emplace_back(stages, Pipeline{.stages = stages, .schedule = kind});
    }
    all.emplace_back(4, Pipeline{.stages = 2, .schedule = kind});
  }
  all.emplace_back(6, Pipeline{.stages = 3});
  for (const int size : {2, 4}) {
    all.emplace_back(size, Pipeline{.stages = 4, .schedule = "interleaved", .workers = 2});
  }
  for (const int size : {1, 2, 3}) all.emplace_back(size, Pipeline{.stages = 4, .workers = 1});
  return all;
}

std::string described(int size, const Pipeline& shape) {
  return shape.schedule + " of " + std::to_string(shape.stages) + " stages, " +
         std::to_string(size) + " workers";
}

// findings-3: B3
TEST(PipelinePaths, AParameterThatShardsReadFirstInDifferentStagesIsRefusedInEveryShape) {
  const PathOf path = [](std::int64_t step, std::int64_t shard) {
    return Path{.reads = step == 1 ? (shard == 2 ? 8 : 1) : 1};
  };
  for (const auto& [size, shape] : shapes()) {
    EXPECT_THAT(run({.size = size, .path = path}, shape),
                AllOf(HasSubstr("parameter \"w\""),
                      HasSubstr("is read first by stage 0 in some "
                                "shards and by stage"),
                      HasSubstr("Pipeline::shared")))
        << described(size, shape);
  }
}

/// Any numbers, by step and shard.
std::int64_t drawn(std::int64_t step, std::int64_t shard, std::int64_t below) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<std::uint64_t>(1000 + 100 * step + shard));
  return torch::randint(below, {1}, generator).item<std::int64_t>();
}

// findings-3: B3
TEST(PipelinePaths, SharedParametersHaveTheBytesOfTheUnsplitRunWhateverStageReadsThem) {
  const std::vector<PathOf> paths = {
      [](std::int64_t, std::int64_t shard) { return Path{.reads = shard % 2 == 0 ? 1 : 4}; },
      [](std::int64_t step, std::int64_t shard) { return Path{.reads = drawn(step, shard, 16)}; },
      [](std::int64_t step, std::int64_t) { return Path{.reads = std::int64_t{8} >> step}; },
  };
  for (const auto& path : paths) {
    const auto plain = run({.path = path}, {});
    for (const auto& [size, shape] : shapes()) {
      EXPECT_EQ(run({.size = size, .path = path, .shared = true}, shape), plain)
          << described(size, shape);
    }
  }
}

// findings-3: B3, B9
TEST(PipelinePaths, AnyNumberOfShardsOnAnyPathsHasTheBytesOfTheUnsplitRun) {
  for (int shards = 2; shards <= 9; ++shards) {
    const PathOf path = [&](std::int64_t step, std::int64_t shard) {
      return Path{.reads = drawn(step, shard + shards, 16),
                  .changes = drawn(step, shard + 50, 3) == 0 ? 4 : 0};
    };
    const auto plain = run({.shards = shards, .path = path}, {});
    const auto expect = [&](int size, const Pipeline& shape) {
      EXPECT_EQ(run({.size = size, .shards = shards, .path = path, .shared = true}, shape), plain)
          << described(size, shape) << ", " << shards << " shards";
    };
    expect(1, {.stages = 3, .workers = 1});
    expect(2, {.stages = 2, .schedule = "gpipe"});
    expect(3, {.stages = 3, .schedule = "zb-h1"});
    expect(4, {.stages = 2, .schedule = "zb-h1"});
    if (shards % 2 == 0) expect(2, {.stages = 4, .schedule = "interleaved", .workers = 2});
  }
}

TEST(PipelinePaths, WhatIsSharedIsAParameterOfTheModel) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    auto pipeline = pipeline_of(chain.layers(), 2);
    pipeline.shared = {chain.linear[0]->weight, torch::ones({2})};
    EXPECT_EQ(text_of<InvalidArgument>(
                  [&] { Trainer(job, chain, Sgd{}, {.shards = 4, .pipeline = pipeline}); }),
              "Pipeline::shared: tensor 1 is no parameter that this Trainer trains");
  });
}

/// A hook of a shared parameter sees the whole gradient, in the first stage's worker.
TEST(PipelinePaths, AHookOfASharedParameterIsCalledOnceForEachShardThatReadsIt) {
  const auto calls_of = [](int size, const std::optional<Pipeline>& shape) {
    return text_of_rank_0(size, [&](const Job& job) {
      Wandering model;
      std::string calls;
      model.w.register_hook([&](const torch::Tensor& gradient) {
        calls += c10::str(gradient.sum().item<double>(), " ");
        return gradient * 2;
      });
      TrainerOptions options{.shards = 4, .seed = 3, .pipeline = shape, .audit_every = 0};
      const auto layers = model.paths();
      if (shape) {
        options.pipeline->layers = layers;
        options.pipeline->shared = {model.w, model.table->weight};
      }
      Trainer trainer(job, model, Sgd{.lr = 0.1}, options);
      const auto inputs = [&](Shard& shard) -> TensorList {
        return {samples_of(0, shard.index()),
                torch::tensor(shard.index() == 1 ? std::int64_t{0} : 1 << shard.index())};
      };
      const auto loss = [](Shard& shard, const TensorList& y) {
        return shard.loss(y[0].square().mean());
      };
      if (shape) {
        trainer.step(inputs, loss);
      } else {
        trainer.step([&](Shard& shard) {
          auto values = inputs(shard);
          for (const auto& layer : layers) values = layer(values);
          return loss(shard, values);
        });
      }
      return calls + trainer.state_sha256();
    });
  };
  const auto plain = calls_of(1, {});
  for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
    EXPECT_EQ(calls_of(2, Pipeline{.stages = 2, .schedule = kind}), plain) << kind;
  }
}

// findings-3: B4
TEST(PipelinePaths, ABufferThatShardsChangeInDifferentStagesIsRefusedInEveryShape) {
  const PathOf path = [](std::int64_t step, std::int64_t shard) {
    return Path{.reads = 0, .changes = step == 1 ? (shard == 2 ? 8 : 1) : 1};
  };
  for (const auto& [size, shape] : shapes()) {
    EXPECT_THAT(run({.size = size, .path = path}, shape),
                AllOf(HasSubstr("buffer \"scale\""), HasSubstr("is changed by stage 0 in some "
                                                               "shards and by stage")))
        << described(size, shape);
  }
}

// findings-3: B9
TEST(PipelinePaths, ABufferThatNoShardOfAPipelineChangesIsThatOfTheUnsplitRun) {
  for (const int changed : {0, 1, 3}) {
    const PathOf path = [&](std::int64_t step, std::int64_t shard) {
      return Path{.reads = 0, .changes = step != 1 && shard == changed ? 4 : 0};
    };
    const auto plain = run({.path = path}, {});
    for (const auto& [size, shape] : shapes()) {
      EXPECT_EQ(run({.size = size, .path = path}, shape), plain)
          << described(size, shape) << ", shard " << changed;
    }
  }
}

// findings-3: B4
TEST(PipelinePaths, ABufferThatALaterStageChangesBackIsRefused) {
  for (const int size : {1, 2}) {
    on_workers(size, [&](const Job& job) {
      struct Flagged : Chain {
        torch::Tensor flag = register_buffer("flag", torch::zeros({1}));
      } chain;
      auto layers = chain.layers();
      for (const std::size_t k : {0U, 3U}) {
        layers[k] = [&chain, k, layer = layers[k]](const TensorList& in) {
          chain.flag.fill_(k == 0 ? 1 : 0);
          return layer(in);
        };
      }
      auto pipeline = pipeline_of(layers, 2);
      pipeline.workers = size;
      Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline});
      EXPECT_THAT(text_of([&] { step_of(trainer); }),
                  HasSubstr("buffer \"flag\" is changed by stage 1 (layers 2 to 3) in shard 0, and "
                            "by a stage before it"));
    });
  }
}

}  // namespace
}  // namespace tutti::test::pipeline_cases
