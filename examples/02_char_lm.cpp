// A character language model, trained on a text file by any number of workers: the same bytes come
// out whether one worker computes all micro-batches of a step or several share them.
//
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --steps 200 --shards 8 --seed 1
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --steps 200 --micro-batches 4 --seed 1
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --shards 8 --codec topk:0.01 --report
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --shards 8 --logical-workers 4
//       --averaging local-sgd:8 --report
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --micro-batches 8 --device cuda
//   build/bin/tutti run -n 2 build/bin/char_lm --text FILE --shards 8 --device cuda
//
// A step is a fixed list of shards (or micro-batches), each drawn by (seed, step, index) alone.
// Every worker computes a contiguous range of them and folds its gradients; one sync per step adds
// up the rest. With --shards the Trainer also splits the update over the workers; with
// --micro-batches the loop and the optimizer stay the program's own.

#include <torch/torch.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "char_lm_options.h"
#include "device_option.h"
#include "text.h"
#include "tutti/tutti.h"

namespace {

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

  torch::Device device() const { return output->weight.device(); }

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
    auto [scores, next] = model->forward(code.to(model->device()), state);
    state = next;
    const auto chances = torch::softmax(scores.cpu().flatten() / 0.7, 0).to(torch::kFloat64);
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

torch::Tensor loss_of(CharModel& model, const torch::Tensor& codes) {
  const auto batch = codes.to(model->device());
  const auto length = batch.size(1) - 1;
  const auto scores = model->forward(batch.slice(1, 0, length)).first;
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1),
                                              batch.slice(1, 1, length + 1).flatten());
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
  if (!options.save.empty()) trainer.save_on_signal(options.save, {.keep = 3});
  if (!step && !options.load.empty()) {
    step = trainer.load(options.load, {.fall_back = options.fall_back});
    if (!step) throw tutti::InvalidArgument("there is no checkpoint in " + options.load);
  }
  if (!step || job.rank() != 0) return;
  std::printf("resumed from step %lld%s\n", static_cast<long long>(*step),
              *step < options.steps ? "" : ": no step is left");
}

/// Steps as shards: the Trainer owns the step, and the update is split over the workers.
Outcome train_shards(const tutti::Job& job, CharModel& model, const Text& text,
                     const Options& options) {
  tutti::Trainer trainer(job, *model, optimizer_of(options),
                         {.shards = options.shards,
                          .seed = options.seed,
                          .compression = compression_of(options),
                          .logical_workers = options.logical_workers,
                          .averaging = tutti::averaging_policy_of(options.averaging),
                          .state_at_averaging = state_at_averaging_of(options),
                          .log = options.log,
                          .tensorboard = options.tensorboard,
                          .hash_every = options.hash_every});
  go_on(job, trainer, options);
  tutti::Progress progress(trainer.steps(), options.steps, {.quiet = options.quiet, .lines = 5});
  Outcome outcome;
  while (trainer.steps() < options.steps) {
    const auto result = trainer.step([&](tutti::Shard& shard) {
      std::mt19937_64 random(shard.seed());
      if (!shard.is_audit()) ++outcome.computed;
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

/// The loss of a micro-batch of a step, which are numbered over all workers.
using PieceLoss = std::function<torch::Tensor(std::int64_t m)>;

/// The drop-in ways: the loop and the optimizer are the program's own. `take` takes a step with
/// this worker's micro-batches, [begin, end).
template <class Parallel, class Take>
Outcome train_micro_batches(const tutti::Job& job, CharModel& model, const Text& text,
                            const Options& options, const Parallel& parallel, const Take& take) {
  const auto [begin, end] = tutti::share_of(options.micro_batches, job);
  tutti::Progress progress(0, options.steps, {.quiet = options.quiet, .lines = 5});
  Outcome outcome;
  for (std::int64_t t = 1; t <= options.steps; ++t) {
    std::vector<double> losses;
    take(begin, end, [&](std::int64_t m) {
      std::seed_seq words{options.seed, static_cast<std::uint64_t>(t),
                          static_cast<std::uint64_t>(m)};
      std::mt19937_64 random(words);
      const auto loss = loss_of(model, text.draw(options.rows, options.length, random));
      losses.push_back(loss.template item<double>());
      ++outcome.computed;
      return loss;
    });
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

/// Gradients are reduced in every step.
Outcome train_together(const tutti::Job& job, CharModel& model, const Text& text,
                       const Options& options) {
  const auto optimizer = torch_optimizer_of(options, model->parameters());
  tutti::DataParallel parallel(job, *model, {.compression = compression_of(options)});
  const auto take = [&](std::int64_t begin, std::int64_t end, const PieceLoss& loss) {
    optimizer->zero_grad();
    auto step = parallel.accumulate({.micro_batches = end - begin});
    for (auto m = begin; m < end; ++m) step.micro_batch(1, [&] { return loss(m); });
    step.finish();
    optimizer->step();
  };
  return train_micro_batches(job, model, text, options, parallel, take);
}

/// Each worker trains on its own, until the copies are averaged.
Outcome train_apart(const tutti::Job& job, CharModel& model, const Text& text,
                    const Options& options) {
  const auto optimizer = torch_optimizer_of(options, model->parameters());
  tutti::AveragedParallel parallel(job, *model, tutti::averaging_policy_of(options.averaging),
                                   {.fusion = options.fusion});
  const auto take = [&](std::int64_t begin, std::int64_t end, const PieceLoss& loss) {
    optimizer->zero_grad();
    for (auto m = begin; m < end; ++m) (loss(m) / static_cast<double>(end - begin)).backward();
    optimizer->step();
    parallel.average_parameters();
  };
  return train_micro_batches(job, model, text, options, parallel, take);
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
  if (text.size() < 2 * options.length) throw tutti::InvalidArgument("the text is too short");

  torch::manual_seed(options.seed);
  CharModel model(text.alphabet_size(), options.hidden);
  model->to(device_of(job, options.device));
  const bool is_apart = tutti::averaging_policy_of(options.averaging) != nullptr;
  const auto outcome = options.shards > 0 ? train_shards(job, model, text, options)
                       : is_apart         ? train_apart(job, model, text, options)
                                          : train_together(job, model, text, options);

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

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a character language model on any number of workers.");
  try {
    parse(argc, argv, app, options);
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
