// A language model whose layers are cut into stages, each on another worker: while one stage
// computes a shard, the others compute other shards.
//
//   build/bin/tutti run -n 2 build/bin/pipeline --text FILE --stages 2 --schedule 1f1b --shards 8
//   build/bin/tutti run -n 4 build/bin/pipeline --text FILE --stages 2    # two pipelines
//   build/bin/tutti run -n 2 build/bin/pipeline --text FILE --schedule interleaved
//
// Stages, schedule and the number of pipelines decide no byte of the result. The head's weight is
// the embedding's: the first stage and the last one both read it.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text.h"
#include "tutti/tutti.h"

namespace {

struct Options {
  std::string text;
  int stages = 0;
  std::string schedule = "1f1b";
  std::int64_t shards = 8;
  std::int64_t steps = 40;
  std::uint64_t seed = 1;
  std::string save;
  std::string load;
  bool quiet = false;
  int blocks = 4;
  std::int64_t rows = 8;
  std::int64_t length = 32;
  std::int64_t width = 64;
  std::int64_t heads = 4;
  double dropout = 0.1;
  double learning_rate = 1e-2;
};

/// Causal self-attention and an MLP, each added to what it is given.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Options& options)
      : heads(options.heads),
        before_attention(norm("before_attention", options.width)),
        before_mlp(norm("before_mlp", options.width)),
        queries_keys_values(linear("queries_keys_values", options.width, 3 * options.width)),
        project(linear("project", options.width, options.width)),
        up(linear("up", options.width, 4 * options.width)),
        down(linear("down", 4 * options.width, options.width)),
        dropout(register_module("dropout", torch::nn::Dropout(options.dropout))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x + dropout->forward(project->forward(attend(before_attention->forward(x))));
    const auto inner = torch::gelu(up->forward(before_mlp->forward(y)));
    return y + dropout->forward(down->forward(inner));
  }

  /// [rows, length, width]
  torch::Tensor attend(const torch::Tensor& x) {
    const auto parts = queries_keys_values->forward(x).chunk(3, 2);
    const auto of_heads = [&](const torch::Tensor& part) {  // [rows, heads, length, width ÷ heads]
      return part.unflatten(2, {heads, -1}).transpose(1, 2);
    };
    const auto seen =
        at::scaled_dot_product_attention(of_heads(parts[0]), of_heads(parts[1]), of_heads(parts[2]),
                                         /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true);
    return seen.transpose(1, 2).flatten(2);
  }

  torch::nn::LayerNorm norm(const std::string& name, std::int64_t width) {
    return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }
  torch::nn::Linear linear(const std::string& name, std::int64_t from, std::int64_t to) {
    return register_module(name, torch::nn::Linear(from, to));
  }

  std::int64_t heads;
  torch::nn::LayerNorm before_attention, before_mlp;
  torch::nn::Linear queries_keys_values, project, up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl(std::int64_t letters, const Options& options)
      : scale(std::sqrt(static_cast<double>(options.width))),
        embedding(register_module("embedding", torch::nn::Embedding(letters, options.width))),
        positions(
            register_module("positions", torch::nn::Embedding(options.length, options.width))),
        dropout(register_module("dropout", torch::nn::Dropout(options.dropout))),
        norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))) {
    // As a head, it begins with scores of about 1; as an embedding, it is scaled back to that.
    const torch::NoGradGuard no_grad;
    embedding->weight.div_(scale);
    for (int i = 0; i < options.blocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(options)));
    }
  }

  /// Codes [rows, length] to scores [rows, length, letters]; their number is that of blocks + 2.
  std::vector<tutti::PipelineLayer> layers() {
    std::vector<tutti::PipelineLayer> all;
    all.push_back([this](const tutti::TensorList& in) -> tutti::TensorList {
      const auto places = torch::arange(in[0].size(1));
      return {dropout->forward(scale * embedding->forward(in[0]) + positions->forward(places))};
    });
    for (const auto& block : blocks) all.push_back(tutti::pipeline_layer(block));
    all.push_back([this](const tutti::TensorList& in) -> tutti::TensorList {
      return {torch::nn::functional::linear(norm->forward(in[0]), embedding->weight)};
    });
    return all;
  }

  double scale;
  torch::nn::Embedding embedding, positions;
  torch::nn::Dropout dropout;
  torch::nn::LayerNorm norm;
  std::vector<Block> blocks;
};
TORCH_MODULE(LanguageModel);

/// Each text's letters but the last one, and those that follow them.
std::pair<torch::Tensor, torch::Tensor> letters_of(const torch::Tensor& batch) {
  return {batch.slice(1, 0, -1), batch.slice(1, 1)};
}

torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& next) {
  return torch::cross_entropy_loss(scores.flatten(0, 1), next.flatten());
}

/// A stage for each worker; "interleaved" gives each worker several.
tutti::Pipeline pipeline_of(const Options& options, LanguageModel& model, int workers) {
  const bool interleaved = options.schedule == "interleaved";
  tutti::Pipeline pipeline;
  pipeline.layers = model->layers();
  pipeline.schedule = options.schedule;
  pipeline.stages = options.stages > 0 ? options.stages : interleaved ? 2 * workers : workers;
  if (interleaved) pipeline.workers = workers;
  return pipeline;
}

/// The loss of texts that are alike for every call, by the model without dropout.
double loss_of_samples(tutti::Trainer& trainer, LanguageModel& model, const Text& text,
                       const Options& options) {
  std::mt19937_64 random(options.seed);
  const auto samples = text.draw(8 * options.rows, options.length, random);
  auto layers = model->layers();
  const auto compute = [&](const std::vector<std::int64_t>& rows, tutti::ShardMetrics& metrics) {
    const auto [letters, next] = letters_of(samples.index_select(0, torch::tensor(rows)));
    tutti::TensorList values = {letters};
    for (auto& layer : layers) values = layer(values);
    metrics.weighted_mean("loss", loss_of(values[0], next).item<double>(),
                          static_cast<double>(next.numel()));
  };
  return trainer.evaluate(samples.size(0), options.rows, compute)["loss"];
}

void train(const Options& options) {
  const auto job = tutti::Job::join();
  const Text text(options.text);
  if (text.size() < 2 * options.length) throw tutti::InvalidArgument("the text is too short");
  torch::manual_seed(options.seed);
  LanguageModel model(text.alphabet_size(), options);
  tutti::TrainerOptions how{.shards = options.shards, .seed = options.seed};
  how.pipeline = pipeline_of(options, model, job.size());
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = options.learning_rate}, how);
  if (!options.load.empty()) {
    const auto step = trainer.load(options.load);
    if (!step) throw tutti::InvalidArgument("there is no checkpoint in " + options.load);
    if (job.rank() == 0) std::printf("resumed from step %lld\n", static_cast<long long>(*step));
  }
  // Both ends of the pipeline draw a shard's texts: its seed is the same on all workers.
  const auto draw = [&](const tutti::Shard& shard) {
    std::mt19937_64 random(shard.seed());
    return letters_of(text.draw(options.rows, options.length, random));
  };
  tutti::Progress progress(trainer.steps(), options.steps, {.quiet = options.quiet, .lines = 5});
  while (trainer.steps() < options.steps) {
    const auto result =
        trainer.step([&](tutti::Shard& shard) -> tutti::TensorList { return {draw(shard).first}; },
                     [&](tutti::Shard& shard, const tutti::TensorList& scores) {
                       return shard.loss(loss_of(scores[0], draw(shard).second));
                     });
    char figures[32];
    std::snprintf(figures, sizeof figures, "loss %.4f", result.loss);
    if (job.rank() == 0) progress.show(result.step, figures);
  }
  if (!options.save.empty()) trainer.save(options.save);
  const double loss = loss_of_samples(trainer, model, text, options);
  if (job.rank() != 0) return;
  std::printf("step %lld loss %.4f parameters sha256 %s\n", static_cast<long long>(trainer.steps()),
              loss, tutti::parameters_sha256(*model).c_str());
}

void parse(int argc, char** argv, CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--text", options.text, "the text file to learn from")->required();
  app.add_option(
         "--stages", options.stages,
         "of the model; a multiple of as many workers is several pipelines; 0: one for each "
         "worker, with interleaved two")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--schedule", options.schedule, "in which order workers compute")
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zb-h1"}));
  app.add_option("--shards", options.shards, "per step")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "training steps")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of the initial weights and the data");
  app.add_option("--save", options.save, "folder for a checkpoint, after the last step");
  app.add_option("--load", options.load, "go on from the newest checkpoint in this folder");
  app.add_flag("--quiet", options.quiet, "no progress");
  app.add_option("--blocks", options.blocks, "of attention and MLP: two layers less than there are")
      ->check(CLI::PositiveNumber);
  app.add_option("--rows", options.rows, "texts per shard")->check(CLI::PositiveNumber);
  app.add_option("--length", options.length, "letters per text")->check(CLI::PositiveNumber);
  app.add_option("--width", options.width, "of the model, a multiple of --heads")
      ->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads, "of attention")->check(CLI::PositiveNumber);
  app.add_option("--dropout", options.dropout, "of each block")->check(CLI::Range(0.0, 0.9));
  app.add_option("--learning-rate", options.learning_rate, "of Adam")->check(CLI::PositiveNumber);
  app.parse(argc, argv);
  if (options.width % options.heads != 0) {
    throw CLI::ValidationError("--width", "is no multiple of --heads");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a language model of letters, cut into stages.");
  try {
    parse(argc, argv, app, options);
    train(options);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "pipeline: %s (--help lists the options)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeline: %s\n", error.what());
    return 1;
  }
  return 0;
}
