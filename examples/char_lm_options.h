#pragma once

// What 02_char_lm.cpp can be told on its command line.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/tutti.h"

struct Options {
  std::string text;
  std::int64_t steps = 200;
  std::int64_t shards = 0;  ///< 0: micro_batches instead
  std::string save;
  std::int64_t save_every = 0;
  std::string load;
  bool fall_back = false;
  std::string log;
  std::string tensorboard;
  std::int64_t hash_every = 0;
  bool quiet = false;
  std::string codec = "none";
  std::string error_feedback = "on";
  std::string scope = "bucket";
  std::int64_t fusion = tutti::kDefaultFusion;
  double clamp = 0;
  std::optional<double> momentum_correction;
  std::int64_t logical_workers = 0;
  std::string averaging = "every-step";
  std::string state_at_averaging = "keep";
  bool report = false;
  std::int64_t micro_batches = 4;
  std::string device = "cpu";  ///< or a type of libtorch's devices
  std::uint64_t seed = 1;
  std::int64_t rows = 16;
  std::int64_t length = 32;
  std::int64_t hidden = 128;
  std::string optimizer = "adam";
  double learning_rate = 3e-3;
  std::int64_t sample = 200;
};

inline tutti::Compression compression_of(const Options& options) {
  tutti::Compression compression{
      .codec = tutti::codec_of(options.codec),
      .error_feedback = options.error_feedback == "on",
      .scope = options.scope == "bucket" ? tutti::CodecScope::bucket : tutti::CodecScope::tensor,
      .fusion = options.fusion,
      .clamp = options.clamp};
  if (options.momentum_correction) {
    compression.momentum_correction = {.momentum = *options.momentum_correction};
  }
  return compression;
}

inline tutti::StateAtAveraging state_at_averaging_of(const Options& options) {
  if (options.state_at_averaging == "keep") return tutti::StateAtAveraging::keep;
  return options.state_at_averaging == "reset" ? tutti::StateAtAveraging::reset
                                               : tutti::StateAtAveraging::average;
}

/// The number of "name:number", `usual` of "name" alone, nothing of another text.
inline std::optional<double> number_after(const std::string& name, const std::string& text,
                                          double usual) {
  if (text == name) return usual;
  double number = 0;
  if (!text.starts_with(name + ":") ||
      !CLI::detail::lexical_cast(text.substr(name.size() + 1), number)) {
    return {};
  }
  return number;
}

/// The momentum of stochastic gradient descent; nothing where the optimizer is another one.
inline std::optional<double> momentum_of(const std::string& optimizer) {
  return number_after("sgd", optimizer, 0);
}
/// The weight decay of AdamW; nothing where the optimizer is another one.
inline std::optional<double> decay_of(const std::string& optimizer) {
  return number_after("adamw", optimizer, 0.01);
}

inline void require_optimizer(const std::string& text) {
  if (text == "adam" || momentum_of(text) || decay_of(text)) return;
  throw tutti::InvalidArgument("optimizer \"" + text +
                               "\": there are adam, adamw[:decay] and sgd[:momentum]");
}

inline tutti::Optimizer optimizer_of(const Options& options) {
  const auto lr = options.learning_rate;
  if (const auto momentum = momentum_of(options.optimizer)) {
    return tutti::Sgd{.lr = lr, .momentum = *momentum};
  }
  if (const auto decay = decay_of(options.optimizer)) {
    return tutti::AdamW{.lr = lr, .weight_decay = *decay};
  }
  return tutti::Adam{.lr = lr};
}

inline std::unique_ptr<torch::optim::Optimizer> torch_optimizer_of(
    const Options& options, const std::vector<torch::Tensor>& parameters) {
  const auto lr = options.learning_rate;
  if (const auto momentum = momentum_of(options.optimizer)) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(lr).momentum(*momentum));
  }
  if (const auto decay = decay_of(options.optimizer)) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(lr).weight_decay(*decay));
  }
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(lr));
}

/// What `parse` throws for a text is what is said of an option.
inline std::function<std::string(const std::string&)> understood_by(
    std::function<void(const std::string&)> parse) {
  return [parse = std::move(parse)](const std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const tutti::InvalidArgument& error) {
      return error.what();
    }
  };
}

/// Throws CLI::ParseError.
inline void parse(int argc, char** argv, CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--text", options.text, "the text file to learn from")->required();
  app.add_option("--steps", options.steps, "training steps")->check(CLI::PositiveNumber);
  auto* const shards =
      app.add_option("--shards", options.shards, "per step, over all workers: with the Trainer")
          ->check(CLI::PositiveNumber);
  app.add_option("--save", options.save, "folder for checkpoints (with --shards)")->needs(shards);
  app.add_option("--save-every", options.save_every, "steps; besides the last one")
      ->check(CLI::PositiveNumber)
      ->needs("--save");
  app.add_option("--load", options.load, "go on from the newest checkpoint in this folder")
      ->needs(shards);
  app.add_flag("--fall-back", options.fall_back,
               "where the newest checkpoint is damaged, --load takes the newest good one")
      ->needs("--load");
  app.add_option("--log", options.log, "file for the steps' metrics and hashes, as JSON lines")
      ->needs(shards);
  app.add_option("--tensorboard", options.tensorboard, "directory for curves of the steps' metrics")
      ->needs(shards);
  app.add_option("--hash-every", options.hash_every, "steps: hash every tensor into the log")
      ->check(CLI::PositiveNumber)
      ->needs("--log");
  app.add_flag("--quiet", options.quiet, "no progress");
  auto* const codec =
      app.add_option("--codec", options.codec,
                     "what is sent of a gradient: none, half, bfloat16, int8, "
                     "threshold[:0.05], topk[:0.05[:steps of warm-up]]")
          ->check(understood_by([](const std::string& text) { tutti::codec_of(text); }));
  app.add_option("--error-feedback", options.error_feedback,
                 "what a codec leaves out is added to the next gradient")
      ->check(CLI::IsMember({"on", "off"}))
      ->needs(codec);
  app.add_option("--topk-scope", options.scope, "what top-K selects from")
      ->check(CLI::IsMember({"bucket", "tensor"}))
      ->needs(codec);
  auto* const fusion =
      app.add_option(
             "--fusion", options.fusion,
             "elements up to which parameters join a bucket, of a codec or an averaging policy")
          ->check(CLI::PositiveNumber);
  const auto take_clamp = [&options](const std::string& text) {
    options.clamp = tutti::kDefaultClamp;
    if (!text.empty() && !CLI::detail::lexical_cast(text, options.clamp)) {
      throw CLI::ValidationError("--clamp", text + " is not a number");
    }
  };
  app.add_option_function<std::string>("--clamp", take_clamp,
                                       "bound of a logical worker's gradient, element by element; "
                                       "without a number 100")
      ->expected(0, 1)
      ->needs(codec);
  app.add_option("--momentum-correction", options.momentum_correction,
                 "momentum before the codec selects, for an optimizer without: sgd")
      ->needs(codec);
  app.add_option(
         "--logical-workers", options.logical_workers,
         "that compress each for itself, or go on by themselves; 0: one, on any number of hosts")
      ->check(CLI::NonNegativeNumber)
      ->needs(shards);
  auto* const averaging =
      app.add_option(
             "--averaging,--strategy", options.averaging,
             "how copies of logical workers are averaged: every-step (gradients are), partial, "
             "local-sgd:K, bmuf:K, diloco:K[,rate[,momentum]][,fragments=P][,warm-up=W][,int8]"
             "[,overlap=T][,own=A]")
          ->check(understood_by([](const std::string& text) { tutti::averaging_policy_of(text); }));
  app.add_option("--state-at-averaging", options.state_at_averaging,
                 "what becomes of the optimizer's state where copies are averaged (with --shards; "
                 "with --micro-batches each worker keeps its own)")
      ->check(CLI::IsMember({"keep", "average", "reset"}))
      ->needs(averaging)
      ->needs(shards);
  app.add_flag("--report", options.report, "a table of what was sent, at the end");
  app.add_option("--micro-batches", options.micro_batches,
                 "per step, over all workers: with DataParallel")
      ->check(CLI::PositiveNumber)
      ->excludes(shards);
  app.add_option(
      "--device", options.device,
      "of the model: cpu, or a type of libtorch's devices (cuda), each worker the one of "
      "its number on its host");
  app.add_option("--seed", options.seed, "of the initial weights and the data");
  app.add_option("--rows", options.rows, "texts per micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--length", options.length, "letters per text")->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "width of the LSTM")->check(CLI::PositiveNumber);
  app.add_option("--optimizer", options.optimizer, "adam, adamw[:decay] or sgd[:momentum]")
      ->check(understood_by(require_optimizer));
  app.add_option("--learning-rate", options.learning_rate, "of the optimizer")
      ->check(CLI::PositiveNumber);
  app.add_option("--sample", options.sample, "letters to generate at the end")
      ->check(CLI::NonNegativeNumber);
  app.parse(argc, argv);
  if (options.momentum_correction && options.optimizer != "sgd") {
    throw CLI::RequiresError("--momentum-correction", "--optimizer sgd: momentum acts once");
  }
  if (options.shards == 0 && tutti::codec_of(options.codec) &&
      tutti::averaging_policy_of(options.averaging)) {
    throw CLI::RequiresError("--codec with --averaging", "--shards: no gradient is sent without");
  }
  if (*fusion && !*codec && !*averaging) {
    throw CLI::RequiresError("--fusion", "--codec or --averaging");
  }
}
