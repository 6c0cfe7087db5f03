// A pipeline gives the bytes of the Trainer without one, whatever its stages, schedule, and number.

#include "support/spread.h"
#include "torch/pipeline/pipeline_nets.h"

namespace tutti::test::pipeline_exact {
namespace {

constexpr int kSteps = 4;

TrainerOptions options() {
  return {.shards = 8, .seed = 3, .clip = {.norm = 0.5}, .loss_scale = dynamic_loss_scale()};
}

/// What there is to compare: parameters, buffers, optimizer state, and what steps gave.
std::string state_of(const StagedNet& net, Trainer& trainer, const std::string& results) {
  std::string buffers;
  for (const auto& item : net.named_buffers()) {
    std::ostringstream text;
    text << item.key() << " " << item.value().to(torch::kFloat64).sum().item<double>() << "\n";
    buffers += text.str();
  }
  return parameters_sha256(net) + "\n" + trainer.state_sha256() + "\n" + buffers + results;
}

std::string result_text(const StepResult& result) {
  std::ostringstream text;
  text.precision(17);
  text << result.step << (result.applied ? " applied " : " dropped ") << result.loss << " "
       << result.weight << " " << result.shards << " " << result.gradient_norm.value_or(-1) << " "
       << result.metrics["right"] << "\n";
  return text.str();
}

std::string without_pipeline(int size) {
  return text_of_rank_0(size, [&](const Job& job) {
    StagedNet net;
    auto layers = net.layers();
    Trainer trainer(job, net, Adam{.lr = 0.01}, options());
    std::string results;
    for (int step = 0; step < kSteps; ++step) {
      results += result_text(trainer.step([&](Shard& shard) {
        const auto [words, next] = words_of(step, shard.index());
        if (step == 1 && shard.index() == 5) return shard.nothing();
        TensorList values = {words};
        for (auto& layer : layers) values = layer(values);
        return loss_of(shard, values[0], next);
      }));
    }
    return state_of(net, trainer, results);
  });
}

std::string with_pipeline(int size, const Pipeline& shape) {
  return text_of_rank_0(size, [&](const Job& job) {
    StagedNet net;
    auto all = options();
    all.pipeline = shape;
    all.pipeline->layers = net.layers();
    Trainer trainer(job, net, Adam{.lr = 0.01}, all);
    std::string results;
    for (int step = 0; step < kSteps; ++step) {
      results += result_text(trainer.step(
          [&](Shard& shard) -> TensorList {
            if (step == 1 && shard.index() == 5) return {};
            return {words_of(step, shard.index()).first};
          },
          [&](Shard& shard, const TensorList& outputs) {
            return loss_of(shard, outputs[0], words_of(step, shard.index()).second);
          }));
    }
    return state_of(net, trainer, results);
  });
}

// promise: pipeline.h#PipelineLayer, pipeline.h#schedule, trainer_options.h#pipeline
TEST(PipelineExact, AllSchedulesStagesAndWidthsHaveTheBytesOfTheUnsplitRun) {
  const auto expected = without_pipeline(1);
  EXPECT_EQ(without_pipeline(2), expected);
  for (const int width : {1, 2}) {
    for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
      for (const int stages : {1, 2, 3, 4}) {
        const auto got = with_pipeline(width * stages, {.stages = stages, .schedule = kind});
        EXPECT_EQ(got, expected) << kind << ", " << stages << " stages, width " << width;
      }
    }
    const auto got =
        with_pipeline(2 * width, {.stages = 4, .schedule = "interleaved", .workers = 2});
    EXPECT_EQ(got, expected) << "interleaved, width " << width;
  }
}

// promise: pipeline.h#Pipeline
TEST(PipelineExact, OnSeveralHostsAndAcrossThemBytesAreThoseOfOneWorker) {
  const auto expected = without_pipeline(1);
  for (const int hosts : {2, 3}) {
    const Spread spread(hosts);
    for (const char* const kind : {"1f1b", "zb-h1"}) {
      for (const int stages : {2, 3, 4}) {
        EXPECT_EQ(with_pipeline(stages, {.stages = stages, .schedule = kind}), expected)
            << hosts << " hosts, " << kind << ", " << stages << " stages";
      }
      EXPECT_EQ(with_pipeline(4, {.stages = 2, .schedule = kind}), expected) << hosts;
    }
    EXPECT_EQ(with_pipeline(6, {.stages = 3}), expected) << hosts;
    EXPECT_EQ(with_pipeline(4, {.stages = 4, .schedule = "interleaved", .workers = 2}), expected)
        << hosts;
  }
}

/// Row-sparse and frozen parameters, segments that run again, and an optimizer of torch's.
struct MixedNet : torch::nn::Module {
  MixedNet() {
    torch::manual_seed(6);
    table = register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kInner).sparse(true)));
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i),
          torch::nn::Sequential(torch::nn::Linear(kInner, kInner), torch::nn::BatchNorm1d(kInner),
                                torch::nn::Dropout(0.2), torch::nn::Tanh())));
    }
    blocks[1]->parameters()[0].requires_grad_(false);
    head = register_module("head", torch::nn::Linear(kInner, kWords));
  }
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all = {pipeline_layer(table)};
    for (auto& block : blocks) {
      all.push_back(
          [block](const TensorList& in) -> TensorList { return {recompute(block, in[0])}; });
    }
    all.push_back(pipeline_layer(head));
    return all;
  }
  torch::nn::Embedding table{nullptr};
  std::vector<torch::nn::Sequential> blocks;
  torch::nn::Linear head{nullptr};
};

std::string mixed(int size, std::optional<Pipeline> shape) {
  return text_of_rank_0(size, [&](const Job& job) {
    MixedNet net;
    auto layers = net.layers();
    TrainerOptions options{.shards = 5, .seed = 3, .clip = {.norm = 1}};
    if (shape) {
      options.pipeline = shape;
      options.pipeline->layers = layers;
    }
    Optimizer optimizer(Adam{.lr = 0.01});
    optimizer.group([](const std::string& name) { return name.starts_with("head."); },
                    torch_optimizer<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1)));
    Trainer trainer(job, net, optimizer, options);
    for (int step = 0; step < kSteps; ++step) {
      const auto result =
          shape ? trainer.step(
                      [&](Shard& shard) -> TensorList {
                        return {words_of(step, shard.index()).first};
                      },
                      [&](Shard& shard, const TensorList& y) {
                        return loss_of(shard, y[0], words_of(step, shard.index()).second);
                      })
                : trainer.step([&](Shard& shard) {
                    const auto [words, next] = words_of(step, shard.index());
                    TensorList values = {words};
                    for (auto& layer : layers) values = layer(values);
                    return loss_of(shard, values[0], next);
                  });
      EXPECT_TRUE(result.applied) << result.dropped_because;
    }
    return parameters_sha256(net) + trainer.state_sha256();
  });
}

TEST(PipelineExact, RowSparseAndFrozenParametersSegmentsAndTorchsOptimizersGoWithOne) {
  const auto expected = mixed(1, {});
  for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int stages : {1, 2, 3}) {
      EXPECT_EQ(mixed(stages, Pipeline{.stages = stages, .schedule = kind}), expected)
          << kind << " " << stages;
    }
  }
  EXPECT_EQ(mixed(4, Pipeline{.stages = 2}), expected);
  const Spread spread(2);
  EXPECT_EQ(mixed(2, Pipeline{.stages = 2}), expected);
}

}  // namespace
}  // namespace tutti::test::pipeline_exact
