// A character language model, trained on a text file by any number of workers: the same bytes come
// out whether one worker computes all micro-batches of a step or several share them.
//
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --steps 200 --shards 8 --seed 1
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --steps 200 --micro-batches 4 --seed 1
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --shards 8 --codec topk:0.01 --report
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --shards 8 --logical-workers 4
//       --strategy local-sgd:8 --report
//
// A step is a fixed list of shards (or micro-batches), each drawn by (seed, step, index) alone.
// Every worker computes a contiguous range of them and folds its gradients; one sync per step adds
// up the rest. With --shards the Trainer also splits the update over the workers; with
// --micro-batches the loop and the optimizer stay the program's own.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace {

struct Options {
  std::string text;
  std::int64_t steps = 200;
  std::int64_t shards = 0;  ///< 0: micro_batches instead
  std::string save;
  std::int64_t save_every = 0;
  std::string load;
  bool fall_back = false;
  std::string log;
  std::int64_t hash_every = 0;
  bool quiet = false;
  std::string codec = "none";
  std::string error_feedback = "on";
  std::string scope = "group";
  std::int64_t fusion = tutti::kDefaultFusion;
  double clamp = 0;
  std::int64_t logical_workers = 0;
  std::string strategy = "every-step";
  std::string meeting_state = "keep";
  bool report = false;
  std::int64_t micro_batches = 4;
  std::uint64_t seed = 1;
  std::int64_t rows = 16;
  std::int64_t length = 32;
  std::int64_t hidden = 128;
  double learning_rate = 3e-3;
  std::int64_t sample = 200;
};

/// The bytes of a file as numbers 0 … size()-1, in order of first value.
class Text {
 public:
  explicit Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw tutti::BadInput("cannot read the text " + path);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    alphabet_ = bytes;
    std::sort(alphabet_.begin(), alphabet_.end());
    alphabet_.erase(std::unique(alphabet_.begin(), alphabet_.end()), alphabet_.end());
    for (const char c : bytes) codes_.push_back(static_cast<std::int64_t>(alphabet_.find(c)));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(codes_.size()); }
  std::int64_t alphabet_size() const { return static_cast<std::int64_t>(alphabet_.size()); }
  char letter(std::int64_t code) const { return alphabet_[static_cast<std::size_t>(code)]; }

  /// [rows, length + 1] codes at random places.
  torch::Tensor draw(std::int64_t rows, std::int64_t length, std::mt19937_64& random) const {
    std::uniform_int_distribution<std::int64_t> place(0, size() - length - 1);
    auto batch = torch::empty({rows, length + 1}, torch::kInt64);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(codes_.begin() + place(random), length + 1,
                  batch.data_ptr<std::int64_t>() + r * (length + 1));
    }
    return batch;
  }

 private:
  std::string alphabet_;
  std::vector<std::int64_t> codes_;
};

struct CharModelImpl : torch::nn::Module {
  CharModelImpl(std::int64_t letters, std::int64_t hidden)
      : embedding(register_module("embedding", torch::nn::Embedding(letters, hidden))),
        lstm(register_module(
            "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(hidden, hidden).batch_first(true)))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden})))),
        output(register_module("output", torch::nn::Linear(hidden, letters))) {}

  using State = std::tuple<torch::Tensor, torch::Tensor>;
  std::pair<torch::Tensor, State> forward(const torch::Tensor& codes,
                                          const torch::optional<State>& state = {}) {
    auto [hidden, next] = lstm->forward(embedding->forward(codes), state);
    return {output->forward(norm->forward(hidden)), next};
  }

  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::LayerNorm norm;
  torch::nn::Linear output;
};
TORCH_MODULE(CharModel);

std::string generate(CharModel& model, const Text& text, const Options& options) {
  const torch::NoGradGuard no_grad;
  std::mt19937_64 random(options.seed);
  std::string made;
  auto code = text.draw(1, 0, random);
  torch::optional<CharModelImpl::State> state;
  for (std::int64_t i = 0; i < options.sample; ++i) {
    auto [scores, next] = model->forward(code, state);
    state = next;
    const auto chances = torch::softmax(scores.flatten() / 0.7, 0).to(torch::kFloat64);
    std::discrete_distribution<std::int64_t> pick(chances.data_ptr<double>(),
                                                  chances.data_ptr<double>() + chances.numel());
    code = torch::full({1, 1}, pick(random), torch::kInt64);
    made += text.letter(code.item<std::int64_t>());
  }
  return made;
}

struct Outcome {
  double loss = 0;            ///< of the last step
  std::int64_t reached = 0;   ///< step number
  std::int64_t steps = 0;     ///< that were run here
  std::int64_t computed = 0;  ///< pieces of them that this worker computed
};

torch::Tensor loss_of(CharModel& model, const torch::Tensor& batch) {
  const auto length = batch.size(1) - 1;
  const auto scores = model->forward(batch.slice(1, 0, length)).first;
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1),
                                              batch.slice(1, 1, length + 1).flatten());
}

tutti::Compression compression_of(const Options& options) {
  return {.codec = tutti::codec_of(options.codec),
          .error_feedback = options.error_feedback == "on",
          .scope = options.scope == "group" ? tutti::CodecScope::group : tutti::CodecScope::tensor,
          .fusion = options.fusion,
          .clamp = options.clamp};
}

tutti::MeetingState meeting_state_of(const Options& options) {
  if (options.meeting_state == "keep") return tutti::MeetingState::keep;
  return options.meeting_state == "reset" ? tutti::MeetingState::reset
                                          : tutti::MeetingState::average;
}

void print_traffic(const tutti::Job& job, const tutti::TrafficReport& traffic,
                   const Options& options) {
  if (options.report && job.rank() == 0) std::printf("\n%s\n", traffic.table().c_str());
}

std::string text_of(double loss) {
  char text[32];
  std::snprintf(text, sizeof text, "loss %.4f", loss);
  return text;
}

/// From the checkpoint that was asked for, or after a restart from what this run had saved.
void go_on(const tutti::Job& job, tutti::Trainer& trainer, const Options& options) {
  std::optional<std::int64_t> step;
  if (job.restarts() > 0 && !options.save.empty()) {
    step = trainer.load(options.save, {.fall_back = true, .of_this_run = true});
  }
  if (!step && !options.load.empty()) {
    step = trainer.load(options.load, {.fall_back = options.fall_back});
    if (!step) throw tutti::BadInput("there is no checkpoint in " + options.load);
  }
  if (!step || job.rank() != 0) return;
  std::printf("goes on from step %lld%s\n", static_cast<long long>(*step),
              *step < options.steps ? "" : ": no step is left");
}

/// Steps as shards: the Trainer owns the step, and the update is split over the workers.
Outcome train_shards(const tutti::Job& job, CharModel& model, const Text& text,
                     const Options& options) {
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = options.learning_rate},
                         {.shards = options.shards,
                          .seed = options.seed,
                          .compression = compression_of(options),
                          .logical_workers = options.logical_workers,
                          .strategy = tutti::strategy_of(options.strategy),
                          .meeting_state = meeting_state_of(options),
                          .log = options.log,
                          .hash_every = options.hash_every});
  go_on(job, trainer, options);
  tutti::Progress progress(trainer.steps(), options.steps, {.quiet = options.quiet, .lines = 5});
  Outcome outcome;
  while (trainer.steps() < options.steps) {
    const auto result = trainer.step([&](tutti::Shard& shard) {
      std::mt19937_64 random(shard.seed());
      ++outcome.computed;
      return shard.loss(loss_of(model, text.draw(options.rows, options.length, random)));
    });
    outcome.loss = result.loss;
    ++outcome.steps;
    if (job.rank() == 0) progress.show(result.step, text_of(result.loss));
    const bool due = options.save_every > 0 && result.step % options.save_every == 0;
    if (!options.save.empty() && (due || result.step == options.steps)) {
      trainer.save(options.save, {.keep = 3});
    }
  }
  outcome.reached = trainer.steps();
  print_traffic(job, trainer.traffic(), options);
  return outcome;
}

/// Losses of all micro-batches of a step, in their order, whoever computed them.
std::vector<double> gather_losses(const tutti::Group& group, const std::vector<double>& mine,
                                  std::int64_t total) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r) {
    const auto [begin, end] = tutti::share_of(total, r, group.size());
    counts.push_back(end - begin);
  }
  std::vector<double> all(static_cast<std::size_t>(total));
  group.all_gather_variable(
      {mine.data(), static_cast<std::int64_t>(mine.size()), tutti::DType::float64},
      {all.data(), total, tutti::DType::float64}, counts, {.label = "losses"});
  return all;
}

/// The drop-in way: the loop and the optimizer are the program's own.
Outcome train_micro_batches(const tutti::Job& job, CharModel& model, const Text& text,
                            const Options& options) {
  torch::optim::Adam optimizer(model->parameters(),
                               torch::optim::AdamOptions(options.learning_rate));
  tutti::DataParallel parallel(job, *model, {.compression = compression_of(options)});
  const auto [begin, end] = tutti::share_of(options.micro_batches, job);
  tutti::Progress progress(0, options.steps, {.quiet = options.quiet, .lines = 5});
  Outcome outcome;
  for (std::int64_t t = 1; t <= options.steps; ++t) {
    optimizer.zero_grad();
    auto step = parallel.accumulate({.micro_batches = end - begin});
    std::vector<double> losses;
    for (std::int64_t m = begin; m < end; ++m) {
      std::seed_seq words{options.seed, static_cast<std::uint64_t>(t),
                          static_cast<std::uint64_t>(m)};
      std::mt19937_64 random(words);
      const auto batch = text.draw(options.rows, options.length, random);
      step.micro_batch(1, [&] {
        const auto loss = loss_of(model, batch);
        losses.push_back(loss.item<double>());
        return loss;
      });
      ++outcome.computed;
    }
    step.finish();
    optimizer.step();
    ++outcome.steps;

    outcome.loss = 0;
    for (const double loss : gather_losses(parallel.group(), losses, options.micro_batches)) {
      outcome.loss += loss;
    }
    outcome.loss /= static_cast<double>(options.micro_batches);
    if (job.rank() == 0) progress.show(t, text_of(outcome.loss));
  }
  outcome.reached = options.steps;
  print_traffic(job, parallel.traffic(), options);
  return outcome;
}

void report_shares(const std::vector<std::int64_t>& computed, std::int64_t steps,
                   const Options& options) {
  if (steps == 0) return;
  const bool shards = options.shards > 0;
  const char* const pieces = shards ? "shards" : "micro-batches";
  const auto per_step = shards ? options.shards : options.micro_batches;
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < computed.size(); ++r) {
    std::printf("worker %zu computed %lld %s, [%lld, %lld) of each step\n", r,
                static_cast<long long>(computed[r]), pieces, static_cast<long long>(sum / steps),
                static_cast<long long>((sum + computed[r]) / steps));
    sum += computed[r];
  }
  std::printf("together %lld = %lld steps x %lld %s: %s\n", static_cast<long long>(sum),
              static_cast<long long>(steps), static_cast<long long>(per_step), pieces,
              sum == steps * per_step ? "all, each once" : "NOT ALL");
}

void train(const Options& options) {
  const auto job = tutti::Job::join();
  const Text text(options.text);
  if (text.size() < 2 * options.length) throw tutti::BadInput("the text is too short");

  torch::manual_seed(options.seed);
  CharModel model(text.alphabet_size(), options.hidden);
  const auto outcome = options.shards > 0 ? train_shards(job, model, text, options)
                                          : train_micro_batches(job, model, text, options);

  std::vector<std::int64_t> computed(static_cast<std::size_t>(job.size()));
  tutti::Group(job, "report")
      .all_gather({&outcome.computed, 1, tutti::DType::int64},
                  {computed.data(), job.size(), tutti::DType::int64}, {.label = "computed"});
  if (job.rank() != 0) return;
  if (options.sample > 0) {
    std::printf("\nsample: %s\n\n", generate(model, text, options).c_str());
  }
  report_shares(computed, outcome.steps, options);
  const auto loss = outcome.steps > 0 ? " " + text_of(outcome.loss) : "";
  std::printf("step %lld%s parameters sha256 %s\n", static_cast<long long>(outcome.reached),
              loss.c_str(), tutti::parameters_sha256(*model).c_str());
}

/// What `parse` throws for a text is what is said of an option.
std::function<std::string(const std::string&)> understood_by(
    std::function<void(const std::string&)> parse) {
  return [parse = std::move(parse)](const std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const tutti::BadInput& error) {
      return error.what();
    }
  };
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a character language model on any number of workers.");
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
  app.add_option("--hash-every", options.hash_every, "steps: hash every tensor into the log")
      ->check(CLI::PositiveNumber)
      ->needs("--log");
  app.add_flag("--quiet", options.quiet, "no progress");
  auto* const codec =
      app.add_option("--codec", options.codec,
                     "what is sent of a gradient: none, half, bfloat16, threshold[:0.05], "
                     "topk[:0.05]")
          ->check(understood_by([](const std::string& text) { tutti::codec_of(text); }));
  app.add_option("--error-feedback", options.error_feedback,
                 "what a codec leaves out is added to the next gradient")
      ->check(CLI::IsMember({"on", "off"}))
      ->needs(codec);
  app.add_option("--topk-scope", options.scope, "what top-K selects from")
      ->check(CLI::IsMember({"group", "tensor"}))
      ->needs(codec);
  auto* const fusion =
      app.add_option("--fusion", options.fusion,
                     "elements up to which parameters join a group, of a codec or a strategy")
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
  app.add_option("--logical-workers", options.logical_workers,
                 "that compress each for itself, or go on by themselves; 0: as many as hosts")
      ->check(CLI::NonNegativeNumber)
      ->needs(shards);
  auto* const strategy =
      app.add_option("--strategy", options.strategy,
                     "when logical workers go on by themselves: every-step (never), partial, "
                     "local-sgd:K, bmuf:K")
          ->check(understood_by([](const std::string& text) { tutti::strategy_of(text); }))
          ->needs(shards);
  app.add_option("--meeting-state", options.meeting_state,
                 "what becomes of the optimizer's state where logical workers meet")
      ->check(CLI::IsMember({"keep", "average", "reset"}))
      ->needs(strategy);
  app.add_flag("--report", options.report, "a table of what was sent, at the end");
  app.add_option("--micro-batches", options.micro_batches,
                 "per step, over all workers: with DataParallel")
      ->check(CLI::PositiveNumber)
      ->excludes(shards);
  app.add_option("--seed", options.seed, "of the initial weights and the data");
  app.add_option("--rows", options.rows, "texts per micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--length", options.length, "letters per text")->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "width of the LSTM")->check(CLI::PositiveNumber);
  app.add_option("--learning-rate", options.learning_rate, "of Adam")->check(CLI::PositiveNumber);
  app.add_option("--sample", options.sample, "letters to generate at the end")
      ->check(CLI::NonNegativeNumber);
  try {
    app.parse(argc, argv);
    if (*fusion && !*codec && !*strategy) {
      throw CLI::RequiresError("--fusion", "--codec or --strategy");
    }
    train(options);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "char_lm: %s (--help lists the options)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "char_lm: %s\n", error.what());
    return 1;
  }
  return 0;
}
