// Golden runs with a Trainer.

#include "golden/trainer_runs.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "golden/golden_model.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::golden {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kSteps = 7;
constexpr std::int64_t kStop = 3;  // before the first epoch ends
// A step takes up to 14 samples. Nine are left for the fourth: one shard has one, two have none.
constexpr std::int64_t kShards = 7;
constexpr std::int64_t kSamples = 51;
constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kOverflowingShard = 2;

/// Where a stretch of a run begins and ends.
struct Stretch {
  std::string load = {};  ///< folder of the checkpoint to go on from
  std::int64_t until = kSteps;
  std::string save = {};        ///< folder for the checkpoint at the end
  std::string save_again = {};  ///< folder for one right after the load
  std::string log = {};
};

/// A refusal of rank 0, whose text begins otherwise on the other ranks.
std::string on_one_line(std::string text) {
  constexpr std::string_view kElsewhere = "load() failed on rank 0: ";
  if (text.starts_with(kElsewhere)) text.erase(0, kElsewhere.size());
  std::replace(text.begin(), text.end(), '\n', ';');
  return text;
}

bool is_bias(const std::string& name) { return name.ends_with("bias"); }

std::optional<std::int64_t> owner_of(const std::string& name) {
  if (name.starts_with("layer")) return 1;
  if (name == "wide") return 2;
  return {};
}

class Training {
 public:
  Training(const Job& job, const TrainerSetup& setup, const Stretch& stretch)
      : setup_(setup),
        stretch_(stretch),
        model_(setup.model, kSeed + static_cast<std::uint64_t>(job.rank())),  // rank 0's hold
        trainer_(job, model_, setup.optimizer, options()) {
    if (!setup_.keeps_values) return;
    trainer_.keep("least loss", least_loss_);
    trainer_.keep("steps since", steps_since_);
    trainer_.keep("note", note_);
    trainer_.keep("losses", losses_);
  }

  std::string run() {
    if (!stretch_.load.empty() && !load()) return text_of(lines_);
    while (trainer_.steps() < stretch_.until) {
      const auto result = trainer_.step([this](Shard& shard) { return answer_of(shard); });
      if (setup_.keeps_values) note(result);
      say("step {} state", result.step, trainer_.state_sha256());
    }
    if (setup_.says_more) say_more();
    // Tables and owned parameters are sent by workers, not by logical workers.
    const bool is_all_coded = !setup_.model.has_table && setup_.options.placement == nullptr;
    if (setup_.options.compression.codec && is_all_coded) say_what_was_sent();
    if (!stretch_.save.empty()) trainer_.save(stretch_.save);
    return text_of(lines_);
  }

 private:
  void note(const StepResult& result) {
    ++steps_since_;
    if (result.loss < least_loss_) {
      least_loss_ = result.loss;
      steps_since_ = 0;
    }
    note_ += fmt::format("{};", result.step);
    losses_ = torch::cat({losses_, torch::full({1}, result.loss, torch::kFloat64)});
  }

  void say_what_was_sent() {
    for (const auto& bucket : trainer_.traffic().all_steps) {
      lines_.emplace_back("sent of " + bucket.parameters,
                          fmt::format("{} messages, {} dense, {} values of {}, {} bytes of {}",
                                      bucket.messages, bucket.dense_messages, bucket.values,
                                      bucket.touched, bucket.bytes, bucket.bytes_dense));
    }
  }

  TrainerOptions options() const {
    auto options = setup_.options;
    options.shards = kShards;
    options.seed = kSeed;
    options.log = stretch_.log;
    if (!options.log.empty()) options.hash_every = kSteps;
    options.buffers = {
        {[](const std::string& name) { return name == "first"; }, BufferRule::first}};
    if (setup_.model.has_table) {
      options.row_sparse = [](const std::string& name) { return name == "table"; };
    }
    return options;
  }

  /// False where the checkpoint is refused.
  bool load() {
    try {
      say("loaded step {}", trainer_.load(stretch_.load).value_or(-1), "…");
    } catch (const Unsupported& error) {
      lines_.emplace_back("refused", on_one_line(error.what()));
      return false;
    }
    say("step {} state", trainer_.steps(), trainer_.state_sha256());
    if (!stretch_.save_again.empty()) trainer_.save(stretch_.save_again);
    return true;
  }

  ShardAnswer answer_of(Shard& shard) {
    const auto samples = shard.indices(kSamples, kBatch);
    if (samples.empty()) return shard.nothing();
    Piece piece{.seed = shard.seed(), .index = shard.index(), .changes_buffers = true};
    for (const auto sample : samples) {
      piece.seed = number_of(piece.seed, static_cast<std::uint64_t>(sample), 0, "sample");
    }
    piece.overflows =
        shard.step() == setup_.overflows_in_step && shard.index() == kOverflowingShard;
    if (setup_.says_more) record(shard, piece.seed);
    const double per_sample = static_cast<double>(3 + shard.index()) / 10;
    return shard.loss(model_.loss(piece), per_sample * static_cast<double>(samples.size()));
  }

  static void record(Shard& shard, std::uint64_t seed) {
    const double value = number_at(seed, 0);
    auto& metrics = shard.metrics();
    metrics.sum("sum", value);
    metrics.mean("mean", value);
    metrics.weighted_mean("weighted mean", value, 1 + value);
    metrics.max("max", value);
    if (shard.index() % 2 == 0) metrics.min("min", value);
    metrics.product("product", value);
    metrics.any("any", value > 0.5);
    metrics.all("all", value > 0.5);
    metrics.gather("gathered", value);
    auto carried = shard.state("carried", [] { return torch::ones({3}); });
    carried.copy_(carried * 0.5 + number_at(seed, 1));
  }

  void say_more() {
    const auto metrics = trainer_.evaluate(
        kSamples, 4, [this](const std::vector<std::int64_t>& samples, ShardMetrics& found) {
          const Piece piece{.seed = static_cast<std::uint64_t>(samples.front())};
          found.weighted_mean("loss", model_.loss(piece).item<double>(),
                              static_cast<double>(samples.size()));
        });
    for (const auto& metric : metrics) say("evaluated {}", metric.name, metric.value);
    say("generator's {}", "seed", at::detail::getDefaultCPUGenerator().current_seed());
  }

  template <class Part, class Value>
  void say(const char* name, const Part& part, const Value& value) {
    lines_.emplace_back(fmt::format(fmt::runtime(name), part), fmt::format("{}", value));
  }

  const TrainerSetup& setup_;
  const Stretch& stretch_;
  GoldenModel model_;
  double least_loss_ = std::numeric_limits<double>::infinity();
  std::int64_t steps_since_ = 0;
  std::string note_;
  torch::Tensor losses_ = torch::empty({0}, torch::kFloat64);
  Trainer trainer_;
  Lines lines_;
};

/// What rank 0 tells; the others are found to tell the same.
Lines train(const TrainerSetup& setup, int workers, const Stretch& stretch) {
  return lines_of_text(text_of_rank_0(workers, [&](const Job& job) {
    const auto text = Training(job, setup, stretch).run();
    expect_same_everywhere(job, text);
    return text;
  }));
}

std::filesystem::path checkpoint_of_step(const std::string& folder, std::int64_t step) {
  return std::filesystem::path(folder) / fmt::format("step-{:08}", step);
}

Lines train_all(const TrainerSetup& setup, int workers) {
  const TemporaryFolder folder;
  const Stretch stretch{.save = folder.file("run"), .log = folder.file("log.jsonl")};
  auto lines = train(setup, workers, stretch);
  if (::testing::Test::HasFailure()) return lines;
  for (auto& line : lines_of_log(stretch.log)) lines.push_back(std::move(line));
  for (auto& line : lines_of_checkpoint(checkpoint_of_step(stretch.save, kSteps))) {
    lines.push_back(std::move(line));
  }
  return lines;
}

Lines resume(const TrainerSetup& setup, int workers, const std::string& from) {
  const TemporaryFolder folder;
  const Stretch stretch{.load = from, .save_again = folder.file("again")};
  auto lines = train(setup, workers, stretch);
  const auto again = checkpoint_of_step(stretch.save_again, kStop);
  if (!std::filesystem::exists(again)) return lines;
  for (auto& line : lines_of_checkpoint(again)) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::pair<std::string, TrainerSetup>> setups() {
  // Powers of these β are exact, so that no library's pow() has a say.
  const tutti::Adam adam{.lr = 0.05, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.01};
  const AdamW adamw{.lr = 0.05, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.01};
  auto published = adamw;
  published.decay = Decay::times_schedule;
  const Sgd momentum{.lr = 0.1, .momentum = 0.9};
  // A rate that is a power of two makes exact products, so that a fused multiply-add has no say.
  const auto torch_rule =
      torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.25).momentum(0.5));
  const auto coded = [](const Compression& compression) {
    TrainerOptions options{.compression = compression, .logical_workers = 3};
    options.compression.fusion = 100;
    return options;
  };
  const auto apart = [](const AveragingPolicyPointer& averaging,
                        StateAtAveraging state = StateAtAveraging::keep) {
    TrainerOptions options{.loss_scale = {.start = 8},
                           .logical_workers = 3,
                           .averaging = averaging,
                           .state_at_averaging = state};
    options.compression.fusion = 100;
    return options;
  };
  const LossScale dynamic{.start = 64, .dynamic = true, .grow_after = 2};

  std::vector<std::pair<std::string, TrainerSetup>> all;
  const auto add = [&](const char* name, TrainerSetup setup) {
    all.emplace_back(name, std::move(setup));
  };
  // Gradients as they are, and the rules.
  add("sgd", {.optimizer = Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01},
              .options = {.schedule = Schedule::step_decay(2, 0.5)},
              .says_more = true});
  add("own_values", {.optimizer = momentum, .keeps_values = true});
  add("adam",
      {.model = {.has_double = true},
       .optimizer = Optimizer(adam).group(is_bias, published),
       .options = {.schedule = Schedule::warm_up(3), .clip = {.norm = 0.5}, .ema_decay = 0.75}});
  add("adagrad",
      {.optimizer =
           Optimizer(Adagrad{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.01, .initial_sum = 0.25})
               .group([](const std::string& name) { return name == "wide"; }, torch_rule),
       .options = {.order = SampleOrder::sequential(),
                   .schedule = Schedule::step_decay(3, 0.5),
                   .clip = {.parameter_norm = 0.5, .value = 0.05}}});
  auto amsgrad = adam;
  auto decoupled_amsgrad = adamw;
  amsgrad.amsgrad = decoupled_amsgrad.amsgrad = true;
  add("amsgrad",
      {.model = {.type = torch::kBFloat16, .has_table = true},
       .optimizer = Optimizer(amsgrad).group(is_bias, decoupled_amsgrad),
       .options = {.clip = {.value = 0.05}, .loss_scale = {.start = 8}, .ema_decay = 0.5}});
  add("rms_prop",
      {.model = {.has_double = true},
       .optimizer = Optimizer(RmsProp{.lr = 0.05, .alpha = 0.75, .momentum = 0.5, .centered = true})
                        .group(is_bias, RmsProp{.lr = 0.05, .weight_decay = 0.01}),
       .options = apart(local_sgd(2), StateAtAveraging::average)});
  add("lion", {.model = {.type = torch::kBFloat16, .has_table = true},
               .optimizer = Lion{.lr = 0.05, .beta1 = 0.75, .beta2 = 0.875, .weight_decay = 0.1},
               .options = {.schedule = Schedule::step_decay(2, 0.5), .clip = {.norm = 0.5}}});
  // 16-bit parameters, their master copies, and loss scales.
  add("bfloat16", {.model = {.type = torch::kBFloat16},
                   .optimizer = adamw,
                   .options = {.loss_scale = dynamic, .ema_decay = 0.5},
                   .overflows_in_step = 3});
  add("float16", {.model = {.type = torch::kFloat16},
                  .optimizer = Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true},
                  .options = {.clip = {.norm = 0.25}, .loss_scale = {.start = 4}}});
  // Codecs.
  auto clipped = coded({.codec = half_codec()});
  clipped.clip.norm = 0.5;
  add("half_codec", {.optimizer = adam, .options = clipped});
  add("bfloat16_codec", {.model = {.type = torch::kBFloat16},
                         .optimizer = momentum,
                         .options = coded({.codec = bfloat16_codec()})});
  auto scaled = coded({.codec = int8_codec()});
  scaled.loss_scale = dynamic;
  add("int8_codec", {.optimizer = adam, .options = scaled, .overflows_in_step = 3});
  add("threshold_codec", {.optimizer = adam, .options = coded({.codec = threshold_codec(0.25)})});
  add("top_k_codec", {.optimizer = momentum, .options = coded({.codec = top_k_codec(0.1)})});
  add("top_k_of_tensors",
      {.optimizer = momentum,
       .options =
           coded({.codec = top_k_codec(0.1, 4), .scope = CodecScope::tensor, .clamp = 0.125})});
  add("top_k_without_feedback",
      {.optimizer = momentum,
       .options = coded({.codec = top_k_codec(0.1), .error_feedback = false})});
  add("momentum_correction", {.optimizer = Sgd{.lr = 0.1},
                              .options = coded({.codec = top_k_codec(0.1),
                                                .momentum_correction = MomentumCorrection{
                                                    .nesterov = true, .weight_decay = 0.01}})});
  // Row-sparse, per-replica and owned parameters.
  add("rows", {.model = {.has_table = true},
               .optimizer = adam,
               .options = {.clip = {.norm = 0.5}, .loss_scale = {.start = 8}}});
  add("rows_beside_a_codec", {.model = {.has_table = true},
                              .optimizer = Adagrad{.lr = 0.1},
                              .options = coded({.codec = top_k_codec(0.1)})});
  auto biases = coded({.codec = threshold_codec(0.25)});
  biases.per_replica = [](const std::string& name) { return is_bias(name) || name == "mean"; };
  biases.loss_scale.start = 8;
  add("per_replica", {.optimizer = adam, .options = biases, .overflows_in_step = 3});
  TrainerOptions owned{.clip = {.norm = 0.5}, .logical_workers = 3, .placement = owner_of};
  add("owned", {.model = {.type = torch::kBFloat16}, .optimizer = adam, .options = owned});
  auto owned_coded = coded({.codec = top_k_codec(0.1)});
  owned_coded.placement = owner_of;
  add("owned_beside_a_codec", {.optimizer = momentum, .options = owned_coded});
  // Averaging of parameters.
  add("local_sgd", {.optimizer = adam, .options = apart(local_sgd(3, 1)), .overflows_in_step = 3});
  add("local_sgd_averaged_state",
      {.optimizer = momentum, .options = apart(local_sgd(2), StateAtAveraging::average)});
  add("local_sgd_reset_state", {.model = {.type = torch::kBFloat16},
                                .optimizer = adam,
                                .options = apart(local_sgd(2), StateAtAveraging::reset)});
  add("block_momentum", {.optimizer = Sgd{.lr = 0.1},
                         .options = apart(block_momentum(2, 0, {.rate = 0.75, .nesterov = true}))});
  // A run stops in the middle of a round of three fragments.
  add("diloco", {.model = {.type = torch::kBFloat16},
                 .optimizer = adamw,
                 .options = apart(diloco(3, {.fragments = 3, .warm_up = 1})),
                 .overflows_in_step = 5});
  add("diloco_in_8_bits",
      {.model = {.type = torch::kBFloat16},
       .optimizer = adamw,
       .options = apart(diloco(3, {.fragments = 2, .warm_up = 1, .int8 = true}))});
  // A run stops while a mean is in flight.
  add("diloco_with_overlap",
      {.model = {.type = torch::kBFloat16},
       .optimizer = adamw,
       .options = apart(diloco(3, {.warm_up = 1, .overlap = 2, .own = 0.25}))});
  add("partial_update", {.optimizer = momentum, .options = apart(partial_update())});
  // Small enough for their checkpoints to lie among the sources.
  auto compressed = coded({.codec = top_k_codec(0.1)});
  compressed.ema_decay = 0.75;
  compressed.loss_scale = dynamic;
  add("kept_compressed", {.model = {.type = torch::kBFloat16, .has_table = true, .has_wide = false},
                          .optimizer = adamw,
                          .options = compressed,
                          .overflows_in_step = 2,
                          .says_more = true});
  add("kept_block_momentum",
      {.model = {.has_wide = false}, .optimizer = momentum, .options = apart(block_momentum(2))});
  return all;
}

/// They are made once: runs refer to them.
const std::vector<std::pair<std::string, TrainerSetup>>& all_setups() {
  static const auto all = setups();
  return all;
}

}  // namespace

std::vector<GoldenRun> trainer_runs() {
  std::vector<GoldenRun> runs;
  for (const auto& [name, setup] : all_setups()) {
    runs.push_back({.name = name,
                    .train = [&setup = setup](int workers) { return train_all(setup, workers); }});
  }
  return runs;
}

const std::vector<KeptRun>& kept_runs() {
  static const auto kept = [] {
    std::vector<KeptRun> runs;
    for (const auto& [name, setup] : all_setups()) {
      if (!name.starts_with("kept_")) continue;
      runs.push_back({.name = name,
                      .save =
                          [&setup = setup](int workers, const std::string& folder) {
                            train(setup, workers, {.until = kStop, .save = folder});
                          },
                      .resume =
                          [&setup = setup](int workers, const std::string& folder) {
                            return resume(setup, workers, folder);
                          }});
    }
    return runs;
  }();
  return kept;
}

}  // namespace tutti::test::golden
