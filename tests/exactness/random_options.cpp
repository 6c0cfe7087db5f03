#include "exactness/random_options.h"

#include "exactness/random_run.h"

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

/// Stages of a stretch lie on one worker each where its workers can be shared out so, else all on
/// each.
std::optional<Pipeline> pipeline_of(const Choices& one, const Stretch& stretch,
                                    const RandomTask& task) {
  const auto stages = static_cast<int>(one.number("stages"));
  if (stretch.is_reference || stages == 0) return {};
  return Pipeline{.layers = task.layers,
                  .stages = stages,
                  .schedule = one["stage-order"],
                  .workers = stretch.workers % stages == 0 ? stages : 1};
}

}  // namespace

Optimizer optimizer_of(const Choices& one) {
  Optimizer optimizer(rule_of(one["rule"]));
  if (!one.is("bias-rule", "same")) {
    optimizer.group([](const std::string& name) { return name.ends_with("bias"); },
                    rule_of(one["bias-rule"]));
  }
  return optimizer;
}

Divide divide_of(const Choices& one) {
  if (one.is("divide", "contributors")) return Divide::by_contributors;
  return one.is("divide", "not-at-all") ? Divide::not_at_all : Divide::by_weight;
}

TrainerOptions options_of(const Choices& one, const Stretch& stretch, const RandomTask& task,
                          const std::string& folder) {
  TrainerOptions options;
  options.shards = one.number("shards");
  options.seed = static_cast<std::uint64_t>(one.number("seed"));
  options.order = order_of(one);
  options.schedule = schedule_of(one["schedule"]);
  options.divide = divide_of(one);
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
  options.pipeline = pipeline_of(one, stretch, task);
  if (one.is("speeds", "uneven")) {
    const auto pipelines = stretch.workers / (options.pipeline ? options.pipeline->workers : 1);
    for (int rank = 0; rank < pipelines; ++rank) {
      options.speeds.push_back(static_cast<double>(
          1 + number_of(options.seed, static_cast<std::uint64_t>(rank), 0, "speed") % 4));
    }
  }
  return options;
}

}  // namespace tutti::test::exact
