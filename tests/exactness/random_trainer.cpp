// A random case with a Trainer.

#include "exactness/random_pieces.h"

namespace tutti::test::exact {
namespace {

Optimizer::Rule rule_of(const std::string& name) {
  if (name == "sgd") return Sgd{.lr = 0.1};
  if (name == "sgd-decay") {
    return Sgd{.lr = 0.1, .weight_decay = 0.01, .decay = Decay::times_schedule};
  }
  if (name == "momentum") return Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
  if (name == "nesterov") return Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true};
  if (name == "dampened") return Sgd{.lr = 0.1, .momentum = 0.5, .dampening = 0.3};
  if (name == "adam") return Adam{.lr = 1e-2};
  if (name == "adam-decay") return Adam{.lr = 1e-2, .beta1 = 0.8, .weight_decay = 0.1};
  if (name == "adamw") return AdamW{.lr = 1e-2, .weight_decay = 0.1};
  if (name == "adamw-as-published") {
    return AdamW{.lr = 1e-2, .weight_decay = 1e-3, .decay = Decay::times_schedule};
  }
  if (name == "adagrad") return Adagrad{.lr_decay = 0.1, .initial_sum = 0.01};
  if (name == "amsgrad") return Adam{.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true};
  if (name == "rms-prop") return RmsProp{.momentum = 0.9, .centered = true};
  if (name == "lion") return Lion{.lr = 1e-3, .weight_decay = 0.1};
  return torch_optimizer<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true));
}

Optimizer optimizer_of(const Choices& one) {
  Optimizer optimizer(rule_of(one["rule"]));
  if (!one.is("bias-rule", "same")) {
    optimizer.group([](const std::string& name) { return name.ends_with("bias"); },
                    rule_of(one["bias-rule"]));
  }
  return optimizer;
}

Schedule schedule_of(const std::string& name) {
  if (name == "cosine") return Schedule::cosine(4, 0.1);
  if (name == "warm-up") return Schedule::warm_up(3, Schedule::cosine(5));
  if (name == "step-decay") return Schedule::step_decay(2, 0.3);
  if (name == "own") {
    return {"own", [](std::int64_t step) { return step % 2 == 0 ? 0.0 : 1.7; }};
  }
  return {};
}

/// Samples are asked for where the choice "data" is "indices" only.
SampleOrder order_of(const Choices& one) {
  const auto size = one.is("data", "indices") ? one.number("samples") : 1;
  if (one.is("order", "sequential")) return SampleOrder::sequential();
  if (one.is("order", "weighted")) {
    std::vector<double> weights;
    for (std::int64_t i = 0; i < size; ++i) weights.push_back(static_cast<double>(1 + i % 3));
    return SampleOrder::weighted(std::move(weights), size + 3);
  }
  if (one.is("order", "own")) {
    return {"own", [](std::int64_t samples, std::int64_t epoch) {
              return std::vector<std::int64_t>(static_cast<std::size_t>(1 + epoch % 5),
                                               epoch % samples);
            }};
  }
  return {};
}

Compression compression_of(const Choices& one, bool is_reference) {
  Compression compression;
  const auto& codec = one["codec"];
  if (codec == "half") compression.codec = half_codec();
  if (codec == "bfloat16") compression.codec = bfloat16_codec();
  if (codec == "int8") compression.codec = int8_codec();
  if (codec == "threshold") compression.codec = threshold_codec(1e-3);
  if (codec == "topk") compression.codec = top_k_codec(0.05);
  if (codec == "topk-warm") compression.codec = top_k_codec(0.02, 3);
  if (one.is("scope", "tensor")) compression.scope = CodecScope::tensor;
  compression.fusion = one.number("fusion");
  compression.error_feedback = one.is("feedback", "on");
  if (!one.is("clamp", "none")) compression.clamp = 0.01;
  if (!one.is("correction", "none")) {
    compression.momentum_correction = {
        .momentum = 0.8, .nesterov = one.is("correction", "nesterov"), .weight_decay = 0.01};
  }
  if (!is_reference && one.is("message_format", "sparse"))
    compression.message_format = MessageFormat::sparse;
  if (!is_reference && one.is("message_format", "dense"))
    compression.message_format = MessageFormat::dense;
  return compression;
}

TrainerOptions options_of(const Choices& one, const Stretch& stretch, const std::string& folder) {
  TrainerOptions options;
  options.shards = one.number("shards");
  options.seed = static_cast<std::uint64_t>(one.number("seed"));
  options.order = order_of(one);
  options.schedule = schedule_of(one["schedule"]);
  if (one.is("rates", "epochs")) options.schedule = Schedule::per_epoch(options.schedule);
  const auto& clip = one["clip"];
  if (clip == "norm" || clip == "all") options.clip.norm = 0.05;
  if (clip == "parameter-norm" || clip == "all") options.clip.parameter_norm = 0.04;
  if (clip == "value" || clip == "all") options.clip.value = 0.01;
  if (one.is("scale", "static")) options.loss_scale = {.start = 1024};
  if (one.is("scale", "dynamic")) {
    options.loss_scale = {.start = 256, .dynamic = true, .grow_after = 2};
  }
  options.compression = compression_of(one, stretch.is_reference);
  options.logical_workers = one.number("logical");
  if (one.is("model", "tables")) {
    options.row_sparse = [](const std::string& name) { return name == "own_weight"; };
  }
  const bool biases = one.is("per-replica", "biases");
  if (biases || one.is("per-replica", "norms")) {
    options.per_replica = [biases](const std::string& name) {
      return biases ? name.ends_with("bias") : name.starts_with("norm.");
    };
  }
  if (!one.is("owner", "none")) {
    const std::string end = one.is("owner", "biases") ? "bias" : "weight";
    options.placement = [end, of = options.logical_workers](const std::string& name) {
      const auto drawn = number_of(0, 0, 0, name) % static_cast<std::uint64_t>(of);
      return name.ends_with(end) ? std::optional(static_cast<std::int64_t>(drawn)) : std::nullopt;
    };
  }
  const auto& averaging = one["averaging"];
  if (averaging == "local") options.averaging = local_sgd(2, 1);
  if (averaging == "block") options.averaging = block_momentum(2, 0, {.nesterov = true});
  if (averaging == "partial") options.averaging = partial_update();
  if (averaging == "diloco") options.averaging = diloco(2, {.warm_up = 1});
  if (averaging == "fragments") options.averaging = diloco(3, {.fragments = 2, .warm_up = 0});
  if (averaging == "overlap")
    options.averaging = diloco(3, {.warm_up = 1, .overlap = 2, .own = 0.25});
  if (averaging == "diloco-int8")
    options.averaging = diloco(3, {.fragments = 2, .warm_up = 1, .int8 = true});
  if (one.is("state-at-averaging", "average"))
    options.state_at_averaging = StateAtAveraging::average;
  if (one.is("state-at-averaging", "reset")) options.state_at_averaging = StateAtAveraging::reset;
  if (!one.is("average", "none")) options.ema_decay = std::stod(one["average"]);
  if (!one.is("buffers", "usual")) {
    options.buffers = {{[](const std::string& name) { return name.ends_with("running_var"); },
                        one.is("buffers", "first") ? BufferRule::first : BufferRule::keep}};
  }
  if (one.has("log")) {
    options.log = log_of(stretch, folder);
    options.hash_every = 1;
  }
  options.audit_every = 0;
  if (stretch.is_reference) return options;
  options.desync_check_every = one.number("digests");
  options.audit_every = one.number("audit");
  if (one.is("speeds", "uneven")) {
    for (int rank = 0; rank < stretch.workers; ++rank) {
      options.speeds.push_back(static_cast<double>(
          1 + number_of(options.seed, static_cast<std::uint64_t>(rank), 0, "speed") % 4));
    }
  }
  return options;
}

/// What the program keeps with the run, of each type: it belongs to the steps that count.
class KeptOnes {
 public:
  void bind(Trainer& trainer) {
    trainer.keep("best loss", best_);
    trainer.keep("applied", applied_);
    trainer.keep("outcomes", outcomes_);
    trainer.keep("mean losses", losses_);
  }
  void update(const StepResult& result) {
    if (result.applied) ++applied_;
    outcomes_ += result.applied ? "a" : "d";
    if (!std::isfinite(result.loss)) return;
    best_ = std::min(best_, result.loss);
    losses_ = torch::cat({losses_ * 0.5, torch::full({1}, result.loss, torch::kFloat64)});
  }
  std::string text() const {
    return fmt::format("{} {} {} {}", text_of(best_), applied_, outcomes_, hash_of(losses_));
  }

 private:
  double best_ = 1e300;
  std::int64_t applied_ = 0;
  std::string outcomes_;
  torch::Tensor losses_ = torch::zeros({0}, torch::kFloat64);
};

class RandomTrainer {
 public:
  RandomTrainer(const Choices& one, const Job& job, const Stretch& stretch,
                const std::string& folder)
      : one_(one), job_(job), stretch_(stretch), folder_(folder), pieces_(one) {}

  Transcript run() {
    torch::manual_seed(pieces_.seed() + static_cast<std::uint64_t>(job_.rank()));
    task_ = task_of(one_);  // rank 0's parameters hold
    std::vector<std::int64_t> ends = {stretch_.end};
    const auto remake = one_.number("remake");
    if (!stretch_.is_reference && remake > stretch_.begin && remake < stretch_.end) {
      ends.insert(ends.begin(), remake);
    }
    for (auto begin = stretch_.begin; const auto end : ends) {
      try {
        trainer_.emplace(job_, *task_.module, optimizer_of(one_),
                         options_of(one_, stretch_, folder_));
      } catch (const InvalidArgument& error) {
        return {std::string(kRefused) + error.what()};
      } catch (const Unsupported& error) {
        return {std::string(kRefused) + error.what()};
      }
      if (one_.has("keep")) kept_.bind(*trainer_);
      if (begin > 0) trainer_->load(folder_ + "/run");
      if (trainer_->steps() != begin) throw std::runtime_error("the checkpoint has another step");
      while (trainer_->steps() < end) train_step();
      const bool goes_on = end < stretch_.end || !stretch_.is_last;
      if (goes_on) trainer_->save(folder_ + "/run", {.keep = 1});
      if (goes_on && one_.has("beyond")) {
        auto lines = std::exchange(out_, {});  // steps that the run goes back on
        train_step();
        out_ = std::move(lines);
      }
      begin = end;
      trainer_.reset();
    }
    return std::move(out_);
  }

 private:
  void train_step() {
    const auto step = trainer_->steps() + 1;
    pieces_.idle(job_, step);
    const bool looks = one_.has("gradients");
    const bool in_halves =
        looks || (!stretch_.is_reference &&
                  (one_.is("halves", "all") || (one_.is("halves", "some") && step % 2 == 0)));
    StepResult result;
    for (int attempt = 0;; ++attempt) {
      try {
        result = in_halves ? step_in_halves(looks) : trainer_->step(closure());
        break;
      } catch (const PlannedFailure&) {
        if (attempt == 3) throw;
      } catch (const PeerFailed&) {
        if (attempt == 3 || one_.is("throw", "none")) throw;
      }
    }
    note(result);
    if (one_.has("keep")) {
      kept_.update(result);
      note("kept", step, kept_.text());
      note("state with what is kept", step, trainer_->state_sha256());
    }
    after(step);
  }

  StepResult step_in_halves(bool looks) {
    trainer_->accumulate(closure());
    Transcript seen;
    if (looks) {
      const auto step = trainer_->steps() + 1;
      seen.push_back(fmt::format("step {} norm between the halves: {}", step,
                                 text_of(trainer_->gradient_norm())));
      for (const auto& item : task_.module->named_parameters()) {
        seen.push_back(fmt::format("step {} gradient {}: {}", step, item.key(),
                                   hash_of(trainer_->gradient(item.key()))));
      }
    }
    const auto result = trainer_->apply();
    // Gradients of a step that is dropped are NaN, of any kind.
    if (result.applied && result.dropped_locally.empty()) {
      out_.insert(out_.end(), seen.begin(), seen.end());
    }
    return result;
  }

  Trainer::Compute closure() {
    return [this](Shard& shard) { return answer_of(shard); };
  }

  ShardAnswer answer_of(Shard& shard) {
    const auto step = shard.step();
    const auto index = shard.index();
    // A failure that is planned is the shard's own.
    const auto throws = [&](const char* where) {
      return !stretch_.is_reference && !shard.is_audit() && pieces_.throws(step, index, where);
    };
    if (throws("before")) throw PlannedFailure();
    auto piece = pieces_.piece(step, index);
    if (one_.is("data", "indices")) {
      const auto samples = shard.indices(one_.number("samples"), one_.number("rows"));
      if (samples.empty()) return shard.nothing();
      piece.rows = static_cast<std::int64_t>(samples.size());
      for (const auto sample : samples) {
        piece.seed = number_of(piece.seed, static_cast<std::uint64_t>(sample), 0, "sample");
      }
    }
    if (pieces_.is_gap(step, index)) return shard.nothing();
    if (one_.has("carry")) {
      piece.state = [&](const std::string& name, const torch::Tensor& init) {
        return shard.state(name, [&] { return init; });
      };
    }
    auto loss = pieces_.with_fault(task_.loss(piece), step, index);
    if (one_.has("metrics")) record(shard.metrics(), step, index);
    if (throws("after")) throw PlannedFailure();
    const auto weight = pieces_.weight(step, index);
    if (one_.is("answer", "gradients")) return gradients_of(shard, loss, weight);
    if (weight > 0 && throws("backward")) {
      loss.register_hook([](const torch::Tensor&) { throw PlannedFailure(); });
    }
    return shard.loss(loss, weight);
  }

  ShardAnswer gradients_of(Shard& shard, const torch::Tensor& loss, double weight) const {
    std::vector<torch::Tensor> parameters;
    for (const auto& item : task_.module->named_parameters()) parameters.push_back(item.value());
    return shard.gradients(
        torch::autograd::grad({loss}, parameters, {}, std::nullopt, false, /*allow_unused=*/true),
        weight);
  }

  void record(ShardMetrics& metrics, std::int64_t step, std::int64_t index) const {
    const auto drawn = pieces_.pick(step, index, "metric");
    const double value = static_cast<double>(drawn % 1000) / 7;
    metrics.sum("sum", value);
    metrics.mean("mean", value);
    metrics.weighted_mean("weighted mean", value, static_cast<double>(drawn % 5));
    metrics.max("max", value);
    if (drawn % 2 == 0) metrics.min("min", value);
    metrics.product("product", value);
    metrics.any("any", drawn % 3 == 0);
    metrics.all("all", drawn % 3 != 0);
    metrics.gather("gathered", value);
  }

  void note(const std::string& name, std::int64_t step, const std::string& value) {
    out_.push_back(fmt::format("step {} {}: {}", step, name, value));
  }

  void note_metrics(std::int64_t step, const std::string& of, const Metrics& metrics) {
    for (const auto& metric : metrics) {
      auto text = text_of(metric.value);
      for (const double value : metric.values) text += " " + text_of(value);
      note(of + metric.name, step, fmt::format("{} of {}", text, metric.shards));
    }
  }

  void note(const StepResult& result) {
    const auto step = result.step;
    note("outcome", step,
         fmt::format("{} {} [{}]", result.applied ? "applied" : "dropped", result.dropped_because,
                     fmt::join(result.dropped_locally, " ")));
    note("figures", step,
         fmt::format("loss {} weight {} of {}, norm {}, rate {}, scale {}", text_of(result.loss),
                     text_of(result.weight), result.shards,
                     result.gradient_norm ? text_of(*result.gradient_norm) : "none",
                     text_of(result.rate_factor), text_of(result.loss_scale)));
    note_metrics(step, "metric ", result.metrics);
    add_tensors(out_, step, *task_.module);
    note("state", step, trainer_->state_sha256());
    note("generator", step, hash_of(torch::rand({2})));
  }

  /// What a program does between two steps.
  void after(std::int64_t step) {
    if (!one_.is("edit", "none") && step == one_.number("edit-step")) edit();
    if (one_.has("evaluate") && step % 2 == 0) {
      const auto metrics =
          trainer_->evaluate(one_.number("samples"), one_.number("rows"),
                             [&](const std::vector<std::int64_t>& samples, ShardMetrics& found) {
                               auto piece = pieces_.piece(0, samples.front());
                               piece.rows = static_cast<std::int64_t>(samples.size());
                               found.weighted_mean("loss", task_.loss(piece).item<double>(),
                                                   static_cast<double>(samples.size()));
                             });
      note_metrics(step, "evaluated ", metrics);
    }
    if (!one_.is("average", "none")) look_at_averages(step);
    const bool has_copies = !one_.is("per-replica", "none") || !one_.is("averaging", "none");
    if (!has_copies) return;
    for (const auto& item : task_.module->named_parameters()) {
      note("all of " + item.key(), step, hash_of(trainer_->gather(item.key())));
    }
    const auto last = one_.number("logical") - 1;
    trainer_->with_logical_worker(
        last, [&] { note("last logical worker", step, parameters_sha256(*task_.module)); });
  }

  void look_at_averages(std::int64_t step) {
    try {
      trainer_->with_ema([&] { note("averages", step, parameters_sha256(*task_.module)); });
    } catch (const InvalidArgument&) {
      note("averages", step, "none yet");
    }
  }

  void edit() {
    trainer_->edit([&] {
      const torch::NoGradGuard no_grad;
      if (one_.is("edit", "parameters")) task_.module->parameters().front().mul_(0.75);
      for (auto& buffer : task_.module->buffers()) {
        if (one_.is("edit", "buffers")) buffer.add_(1);
      }
    });
    note("state after the edit", trainer_->steps(), trainer_->state_sha256());
  }

  const Choices& one_;
  const Job& job_;
  const Stretch& stretch_;
  const std::string& folder_;
  Pieces pieces_;
  RandomTask task_;
  KeptOnes kept_;  ///< outlives the Trainer
  std::optional<Trainer> trainer_;
  Transcript out_;
};

}  // namespace

Transcript train_with_trainer(const Choices& one, const Job& job, const Stretch& stretch,
                              const std::string& folder) {
  return RandomTrainer(one, job, stretch, folder).run();
}

}  // namespace tutti::test::exact
