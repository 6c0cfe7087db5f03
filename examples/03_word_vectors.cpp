// Word vectors from a text file (skip-gram with negative samples, Mikolov et al. 2013, arXiv
// 1310.4546): two tables with a row per word, of which a step looks up a few. Their gradients are
// row-sparse, so that only these rows are exchanged and updated; the same bytes come out for any
// number of workers.
//
//   build/bin/tutti run -n 2 build/bin/word_vectors --text FILE --steps 2000 --report
//
// The tables say sparse(true), and nothing else is needed. A row that no shard looked up keeps its
// value and the optimizer's state of it.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace {

struct Options {
  std::string text;
  std::int64_t steps = 2000;
  std::int64_t shards = 4;
  std::int64_t batch = 128;
  std::int64_t dimension = 64;
  std::int64_t window = 4;
  std::int64_t negatives = 5;
  std::int64_t least = 3;
  std::uint64_t seed = 1;
  double learning_rate = 0.05;
  std::string optimizer = "adagrad";
  std::int64_t show = 5;
  bool report = false;
  bool quiet = false;
};

/// Words of a text as numbers, the most frequent first; rare ones are left out.
class Words {
 public:
  Words(const std::string& path, std::int64_t least) {
    std::ifstream file(path);
    if (!file) throw tutti::IoError(errno, "cannot read the text " + path);
    std::vector<std::string> all;
    std::string word;
    for (char c = 0; file.get(c);) {
      if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (!word.empty()) {
        all.push_back(std::exchange(word, {}));
      }
    }
    if (!word.empty()) all.push_back(word);
    std::map<std::string, std::int64_t> counts;
    for (const auto& one : all) ++counts[one];
    std::vector<std::pair<std::int64_t, std::string>> ranking;
    for (const auto& [one, count] : counts) {
      if (count >= least) ranking.emplace_back(-count, one);
    }
    std::sort(ranking.begin(), ranking.end());
    std::map<std::string, std::int64_t> code;
    for (const auto& [count, one] : ranking) {
      code[one] = size();
      names_.push_back(one);
      chances_.push_back(std::pow(static_cast<double>(-count), 0.75));
    }
    for (const auto& one : all) {
      if (const auto found = code.find(one); found != code.end()) text_.push_back(found->second);
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(names_.size()); }
  const std::string& name(std::int64_t word) const {
    return names_[static_cast<std::size_t>(word)];
  }
  const std::vector<std::int64_t>& text() const { return text_; }
  /// Of negative samples: counts to the power of ¾.
  const std::vector<double>& chances() const { return chances_; }

 private:
  std::vector<std::string> names_;
  std::vector<std::int64_t> text_;
  std::vector<double> chances_;
};

struct WordVectorsImpl : torch::nn::Module {
  WordVectorsImpl(std::int64_t words, std::int64_t dimension)
      : centers(register_module("centers", table(words, dimension))),
        contexts(register_module("contexts", table(words, dimension))) {
    const torch::NoGradGuard no_grad;
    centers->weight.uniform_(-0.5 / static_cast<double>(dimension),
                             0.5 / static_cast<double>(dimension));
    contexts->weight.zero_();
  }
  static torch::nn::Embedding table(std::int64_t words, std::int64_t dimension) {
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(words, dimension).sparse(true));
  }

  /// Of words [n] and, for each, the word beside it followed by words that are not: [n, 1 + k].
  torch::Tensor loss(const torch::Tensor& words, const torch::Tensor& others) {
    const auto scores =
        torch::bmm(contexts->forward(others), centers->forward(words).unsqueeze(2)).squeeze(2);
    auto is_beside = torch::zeros_like(scores);
    is_beside.select(1, 0).fill_(1);
    return torch::binary_cross_entropy_with_logits(scores, is_beside, {}, {}, at::Reduction::Sum) /
           words.size(0);
  }

  torch::nn::Embedding centers;
  torch::nn::Embedding contexts;
};
TORCH_MODULE(WordVectors);

/// A batch of places in the text: their words, a word beside each, and negative samples.
std::pair<torch::Tensor, torch::Tensor> draw(const Words& words,
                                             const std::vector<std::int64_t>& places,
                                             std::uint64_t seed, const Options& options) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int64_t> distance(1, options.window);
  std::discrete_distribution<std::int64_t> negative(words.chances().begin(), words.chances().end());
  const auto& text = words.text();
  const auto length = static_cast<std::int64_t>(text.size());
  const auto count = static_cast<std::int64_t>(places.size());
  auto centers = torch::empty({count}, torch::kInt64);
  auto others = torch::empty({count, 1 + options.negatives}, torch::kInt64);
  auto* const center = centers.data_ptr<std::int64_t>();
  auto* other = others.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto place = places[static_cast<std::size_t>(i)];
    const auto step = distance(random);
    const bool forwards = random() % 2 == 0 ? place + step < length : place < step;
    center[i] = text[static_cast<std::size_t>(place)];
    *other++ = text[static_cast<std::size_t>(forwards ? place + step : place - step)];
    for (std::int64_t k = 0; k < options.negatives; ++k) *other++ = negative(random);
  }
  return {centers, others};
}

tutti::Optimizer optimizer_of(const Options& options) {
  if (options.optimizer == "adam") return tutti::Adam{.lr = options.learning_rate};
  if (options.optimizer == "sgd") return tutti::Sgd{.lr = options.learning_rate};
  return tutti::Adagrad{.lr = options.learning_rate};
}

/// The words whose vectors point most nearly where the word's does.
std::string nearest(const WordVectors& model, const Words& words, std::int64_t word,
                    std::int64_t count) {
  const auto& table = model->centers->weight;
  const auto vectors = table / (table.norm(2, {1}, true) + 1e-12);
  const auto order = vectors.matmul(vectors[word]).argsort(0, /*descending=*/true);
  std::string text;
  for (std::int64_t k = 0; k < order.numel() && count > 0; ++k) {
    const auto other = order[k].item<std::int64_t>();
    if (other == word) continue;
    text += ' ' + words.name(other);
    --count;
  }
  return text;
}

void train(const Options& options) {
  const auto job = tutti::Job::join();
  const Words words(options.text, options.least);
  const auto places = static_cast<std::int64_t>(words.text().size());
  if (places <= 2 * options.window) throw tutti::InvalidArgument("the text is too short");
  torch::manual_seed(options.seed);
  WordVectors model(words.size(), options.dimension);
  tutti::Trainer trainer(job, *model, optimizer_of(options),
                         {.shards = options.shards, .seed = options.seed, .name = "word vectors"});
  if (job.rank() == 0) {
    std::printf("%lld different words, %lld in all\n", static_cast<long long>(words.size()),
                static_cast<long long>(places));
  }
  tutti::Progress progress(0, options.steps, {.quiet = options.quiet, .lines = 5});
  double loss = 0;
  while (trainer.steps() < options.steps) {
    const auto result = trainer.step([&](tutti::Shard& shard) {
      const auto indices = shard.indices(places, options.batch);
      if (indices.empty()) return shard.nothing();
      const auto [centers, others] = draw(words, indices, shard.seed(), options);
      return shard.loss(model->loss(centers, others), static_cast<double>(indices.size()));
    });
    loss = result.loss;
    char text[32];
    std::snprintf(text, sizeof text, "loss %.4f", loss);
    if (job.rank() == 0) progress.show(result.step, text);
  }
  if (job.rank() != 0) return;
  const torch::NoGradGuard no_grad;
  std::printf("\n");
  for (std::int64_t word = 0; word < std::min<std::int64_t>(options.show, words.size()); ++word) {
    // Beyond the words that stand everywhere.
    const auto shown = std::min(words.size() - 1, 20 + 7 * word);
    std::printf("%-14s%s\n", words.name(shown).c_str(), nearest(model, words, shown, 6).c_str());
  }
  if (options.report) std::printf("\n%s", trainer.traffic().table().c_str());
  std::printf("\nstep %lld loss %.4f parameters sha256 %s\n",
              static_cast<long long>(trainer.steps()), loss,
              tutti::parameters_sha256(*model).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Learns word vectors from a text on any number of workers.");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", options.text, "the text file to learn from")->required();
  app.add_option("--steps", options.steps, "training steps")->check(CLI::PositiveNumber);
  app.add_option("--shards", options.shards, "per step, over all workers")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch, "words per shard")->check(CLI::PositiveNumber);
  app.add_option("--dimension", options.dimension, "of a vector")->check(CLI::PositiveNumber);
  app.add_option("--window", options.window, "how far apart words beside each other may be")
      ->check(CLI::PositiveNumber);
  app.add_option("--negatives", options.negatives, "samples per word")->check(CLI::PositiveNumber);
  app.add_option("--least", options.least, "words that occur less often are left out")
      ->check(CLI::PositiveNumber);
  app.add_option("--optimizer", options.optimizer, "the rule")
      ->check(CLI::IsMember({"adagrad", "adam", "sgd"}));
  app.add_option("--learning-rate", options.learning_rate, "of the rule")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of the initial vectors and the data");
  app.add_option("--show", options.show, "words whose neighbours are shown at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--report", options.report, "a table of what was sent, at the end");
  app.add_flag("--quiet", options.quiet, "no progress");
  try {
    app.parse(argc, argv);
    train(options);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "word_vectors: %s (--help lists the options)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "word_vectors: %s\n", error.what());
    return 1;
  }
  return 0;
}
