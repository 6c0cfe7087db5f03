// A language model of words, trained on a text file through long stretches of it: truncated
// back-propagation, whose hidden states are carried from step to step, and an LSTM that runs in
// chunks of time, each again in backward. The same bytes come out on any number of workers, with
// --recompute and without.
//
//   build/bin/tutti run -n 2 build/bin/lstm_lm --text FILE --steps 200 --shards 8 --seed 1
//   --recompute
//
// The text's end is held out. What is left has a part for each shard, whose rows each read a part
// of it from beginning to end: --length words in a step, with the state in which the step before
// ended. That state belongs to the shard (Shard::state): it is where the shard is, on whatever
// worker, and in checkpoints.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/tutti.h"

namespace {

struct Options {
  std::string text;
  std::int64_t steps = 200;
  std::int64_t shards = 8;
  std::uint64_t seed = 1;
  std::int64_t rows = 4;
  std::int64_t length = 35;
  std::int64_t hidden = 128;
  std::int64_t layers = 2;
  double dropout = 0.3;
  std::int64_t vocabulary = 2000;
  double learning_rate = 4e-3;
  bool forget = false;
  bool recompute = false;
  std::int64_t chunk = 0;
  std::int64_t every = 50;
  std::string save;
  std::int64_t save_every = 0;
  std::string load;
  bool quiet = false;
};

/// Words, in small letters, and punctuation marks.
std::vector<std::string> words_of(const std::string& text) {
  const auto is_of_a_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '\'';
  };
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (std::isspace(c) != 0) continue;
    if (i == 0 || !is_of_a_word(text[i]) || !is_of_a_word(text[i - 1])) words.emplace_back();
    words.back() += static_cast<char>(std::tolower(c));
  }
  return words;
}

/// A text's words as numbers, the last tenth held out. Known are the most frequent words of the
/// others, of those that occur twice; all that are not are word 0.
struct Words {
  Words(const std::string& path, std::int64_t most) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw tutti::IoError(errno, "cannot read the text " + path);
    const auto words = words_of({std::istreambuf_iterator<char>(file), {}});
    const auto for_training = static_cast<std::int64_t>(words.size() - words.size() / 10);
    std::map<std::string, std::int64_t> counts;
    for (auto w = words.begin(); w != words.begin() + for_training; ++w) ++counts[*w];
    std::vector<std::pair<std::int64_t, std::string>> ranks;
    for (const auto& [word, count] : counts) {
      if (count > 1) ranks.emplace_back(-count, word);
    }
    std::sort(ranks.begin(), ranks.end());
    std::map<std::string, std::int64_t> codes;
    for (const auto& [count, word] : ranks) {
      if (++vocabulary == most) break;
      codes.emplace(word, vocabulary);
    }
    vocabulary = static_cast<std::int64_t>(codes.size()) + 1;
    std::vector<std::int64_t> all;
    for (const auto& word : words) all.push_back(codes.contains(word) ? codes.at(word) : 0);
    const auto tensor = torch::tensor(all, torch::kInt64);
    training = tensor.narrow(0, 0, for_training);
    held_out = tensor.narrow(0, for_training, tensor.numel() - for_training);
  }
  std::int64_t vocabulary = 0;
  torch::Tensor training, held_out;
};

/// The training text's parts: [shards, rows, words].
torch::Tensor parts_of(const Words& words, const Options& options) {
  const auto each = words.training.numel() / (options.shards * options.rows);
  return words.training.narrow(0, 0, each * options.shards * options.rows)
      .view({options.shards, options.rows, each});
}

struct ModelImpl : torch::nn::Module {
  ModelImpl(std::int64_t vocabulary, const Options& options)
      : chunks{.steps = options.chunk, .recompute = options.recompute, .name = "lstm"},
        embedding(register_module("embedding", torch::nn::Embedding(vocabulary, options.hidden))),
        lstm(register_module("lstm",
                             torch::nn::LSTM(torch::nn::LSTMOptions(options.hidden, options.hidden)
                                                 .num_layers(options.layers)
                                                 .dropout(options.dropout)
                                                 .batch_first(true)))),
        dropout(register_module("dropout", torch::nn::Dropout(options.dropout))),
        output(register_module("output", torch::nn::Linear(options.hidden, vocabulary))) {}

  /// The mean loss of each next word of `words`, [rows, length + 1], and the last states.
  std::pair<torch::Tensor, tutti::LstmState> forward(const torch::Tensor& words,
                                                     const std::optional<tutti::LstmState>& state) {
    const auto length = words.size(1) - 1;
    const auto x = dropout->forward(embedding->forward(words.narrow(1, 0, length)));
    const auto [y, last] = tutti::run_in_chunks(lstm, x, state, chunks);
    const auto scores = output->forward(dropout->forward(y));
    return {torch::nn::functional::cross_entropy(scores.flatten(0, 1),
                                                 words.narrow(1, 1, length).flatten()),
            last};
  }

  tutti::ChunkOptions chunks;
  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::Dropout dropout;
  torch::nn::Linear output;
};
TORCH_MODULE(Model);

/// A shard's next words, from the state in which its last step ended.
tutti::ShardAnswer learn(Model& model, const torch::Tensor& parts, tutti::Shard& shard,
                         const Options& options) {
  const auto windows = (parts.size(2) - 1) / options.length;
  const auto window = (shard.step() - 1) % windows;
  const auto zeros = [&] { return torch::zeros({options.layers, options.rows, options.hidden}); };
  auto hidden = shard.state("hidden", zeros);
  auto cell = shard.state("cell", zeros);
  if (window == 0 || options.forget) {  // the parts begin anew
    hidden.zero_();
    cell.zero_();
  }
  // Backward comes when this is over, and the states are changed by then: a clone is used.
  const auto [loss, last] =
      model->forward(parts[shard.index()].narrow(1, window * options.length, options.length + 1),
                     std::tuple(hidden.clone(), cell.clone()));
  hidden.copy_(std::get<0>(last).detach());
  cell.copy_(std::get<1>(last).detach());
  return shard.loss(loss);
}

/// The loss of words that no step has seen; each stretch of them from a state of zeros.
double held_out_loss(tutti::Trainer& trainer, Model& model, const torch::Tensor& words,
                     const Options& options) {
  const auto stretches = (words.numel() - 1) / options.length;
  const auto metrics = trainer.evaluate(
      stretches, 8, [&](const std::vector<std::int64_t>& samples, tutti::ShardMetrics& sums) {
        std::vector<torch::Tensor> rows;
        for (const auto sample : samples) {
          rows.push_back(words.narrow(0, sample * options.length, options.length + 1));
        }
        const auto count = static_cast<double>(samples.size());
        sums.weighted_mean("loss", model->forward(torch::stack(rows), {}).first.item<double>(),
                           count);
      });
  return metrics["loss"];
}

void go_on(const tutti::Job& job, tutti::Trainer& trainer, const Options& options) {
  std::optional<std::int64_t> step;
  if (job.restarts() > 0 && !options.save.empty()) {
    step = trainer.load(options.save, {.fall_back = true, .of_this_run = true});
  }
  if (!step && !options.load.empty()) {
    step = trainer.load(options.load);
    if (!step) throw tutti::InvalidArgument("there is no checkpoint in " + options.load);
  }
  if (step && job.rank() == 0) {
    std::printf("resumed from step %lld\n", static_cast<long long>(*step));
  }
}

void train(const Options& options) {
  const auto job = tutti::Job::join();
  const Words words(options.text, options.vocabulary);
  const auto parts = parts_of(words, options);
  if (parts.size(2) <= options.length || words.held_out.numel() <= options.length) {
    throw tutti::InvalidArgument(
        "the text is too short for so many shards of so many rows of so many words");
  }
  torch::manual_seed(options.seed);
  Model model(words.vocabulary, options);
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = options.learning_rate},
                         {.shards = options.shards, .seed = options.seed, .clip = {.norm = 1.0}});
  go_on(job, trainer, options);
  double loss = 0;
  std::int64_t steps = 0;
  while (trainer.steps() < options.steps) {
    const auto result =
        trainer.step([&](tutti::Shard& shard) { return learn(model, parts, shard, options); });
    loss += result.loss;
    ++steps;
    const bool last = result.step == options.steps;
    if (!options.save.empty() &&
        (last || (options.save_every > 0 && result.step % options.save_every == 0))) {
      trainer.save(options.save, {.keep = 3});
    }
    if (!last && result.step % options.every != 0) continue;
    const auto held_out = held_out_loss(trainer, model, words.held_out, options);
    loss /= static_cast<double>(steps);
    if (job.rank() == 0 && !options.quiet) {
      std::printf(
          "step %lld of %lld: loss %.4f, perplexity %.1f; held out: loss %.4f, perplexity "
          "%.1f\n",
          static_cast<long long>(result.step), static_cast<long long>(options.steps), loss,
          std::exp(loss), held_out, std::exp(held_out));
    }
    loss = 0;
    steps = 0;
  }
  if (job.rank() != 0) return;
  std::printf("step %lld parameters sha256 %s\n", static_cast<long long>(trainer.steps()),
              tutti::parameters_sha256(*model).c_str());
}

/// Throws CLI::ParseError.
void parse(int argc, char** argv, CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--text", options.text, "the text file to learn from")->required();
  const auto count = [&](const std::string& name, std::int64_t& value, const std::string& text) {
    return app.add_option(name, value, text)->check(CLI::PositiveNumber);
  };
  count("--steps", options.steps, "training steps");
  count("--shards", options.shards, "per step, over all workers");
  app.add_option("--seed", options.seed, "of the initial weights and of dropout");
  count("--rows", options.rows, "stretches of text that a shard reads side by side");
  count("--length", options.length, "words of each in a step");
  count("--hidden", options.hidden, "width of the LSTM");
  count("--layers", options.layers, "of the LSTM");
  app.add_option("--dropout", options.dropout, "share of elements")->check(CLI::Range(0.0, 0.99));
  count("--vocabulary", options.vocabulary, "words that are told apart");
  app.add_option("--learning-rate", options.learning_rate, "of Adam")->check(CLI::PositiveNumber);
  app.add_flag("--forget", options.forget, "each step begins with states of zeros");
  app.add_flag("--recompute", options.recompute, "chunks of the LSTM run again in backward");
  app.add_option("--chunk", options.chunk, "words of a chunk; 0: about the root of --length")
      ->check(CLI::NonNegativeNumber);
  count("--every", options.every, "steps: figures of these and of what is held out");
  app.add_option("--save", options.save, "folder for checkpoints");
  count("--save-every", options.save_every, "steps; besides the last one")->needs("--save");
  app.add_option("--load", options.load, "go on from the newest checkpoint in this folder");
  app.add_flag("--quiet", options.quiet, "no figures on the way");
  app.parse(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a language model of words on any number of workers.");
  try {
    parse(argc, argv, app, options);
    train(options);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "lstm_lm: %s (--help lists the options)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lstm_lm: %s\n", error.what());
    return 1;
  }
  return 0;
}
