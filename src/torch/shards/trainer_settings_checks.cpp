// What a Trainer's options may not be.

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "run/numbers/loss_scaler.h"
#include "sync/nodes/logical_workers.h"
#include "torch/model/divide.h"
#include "torch/shards/trainer_settings.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void require_bound(double bound, std::string_view name) {
  if (std::isfinite(bound) && bound >= 0) return;
  throw InvalidArgument(fmt::format("{} {}: must be finite and not negative", name, bound));
}

std::string who_is_per_replica(const TrainerOptions& options) {
  return options.averaging ? fmt::format("averaging {}", options.averaging->name()) : "per_replica";
}

}  // namespace

void require_options(const TrainerOptions& options) {
  if (options.shards < 1) {
    throw InvalidArgument(fmt::format("{} shards: a step has at least 1", options.shards));
  }
  validate(options.compression);
  if (options.averaging) validate(*options.averaging);
  if (has_per_replica(options) && options.logical_workers == 0) {
    throw InvalidArgument(
        fmt::format("{} without logical_workers: say how many there are, each with parameters of "
                    "its own",
                    who_is_per_replica(options)));
  }
  if (options.logical_workers != 0) {
    logical_workers(options.shards, options.logical_workers);  // throws for one too many
  }
  require_bound(options.clip.norm, "clip.norm");
  require_bound(options.clip.parameter_norm, "clip.parameter_norm");
  require_bound(options.clip.value, "clip.value");
  require_loss_scale(options.loss_scale);
  if (options.ema_decay != 0 && !(options.ema_decay > 0 && options.ema_decay < 1)) {
    throw InvalidArgument(
        fmt::format("ema_decay {}: must be between 0 and 1, or 0", options.ema_decay));
  }
  if (options.max_consecutive_drops < 1)
    throw InvalidArgument("max_consecutive_drops must be at least 1");
  if (options.desync_check_every < 0)
    throw InvalidArgument("desync_check_every must not be negative");
  if (options.audit_every < 0) throw InvalidArgument("audit_every must not be negative");
  if (options.metrics_every < 0) throw InvalidArgument("metrics_every must not be negative");
  if (options.hash_every < 0) throw InvalidArgument("hash_every must not be negative");
  if (options.hash_every > 0 && options.log.empty())
    throw InvalidArgument("hash_every without a log");
  require_deadline(options.deadline);
}

void require_per_replica(const TrainerOptions& options, const WrappedModel& model) {
  if (options.averaging && options.averaging->overlap().steps > 0 &&
      options.state_at_averaging != StateAtAveraging::keep) {
    throw InvalidArgument(fmt::format("state_at_averaging {} with averaging {}, which overlaps",
                                      name_of(options.state_at_averaging),
                                      options.averaging->name()));
  }
  if (!options.averaging && options.state_at_averaging != StateAtAveraging::keep) {
    throw InvalidArgument(fmt::format("state_at_averaging {} without an averaging policy",
                                      name_of(options.state_at_averaging)));
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.owner(p) < options.logical_workers) continue;
    throw InvalidArgument(fmt::format(
        "\"{}\" is owned by logical worker {}: logical_workers = {} has 0 to {}", model.name(p),
        model.owner(p), options.logical_workers, options.logical_workers - 1));
  }
  if (!has_per_replica(options)) return;
  const auto who = who_is_per_replica(options);
  if (options.divide != Divide::by_weight) {
    throw InvalidArgument(fmt::format(
        "divide {} with {}: each logical worker's gradients are divided by its own weights",
        name_of(options.divide), who));
  }
  if (options.averaging && options.per_replica) {
    throw InvalidArgument(
        fmt::format("per_replica with {}, which makes all parameters per-replica", who));
  }
  std::size_t count = 0;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) count += model.is_per_replica(p);
  bool any_buffer = false;
  for (std::size_t b = 0; b < model.buffers().size(); ++b) {
    any_buffer = any_buffer || model.is_per_replica_buffer(b);
  }
  if (count == 0 && !any_buffer) {
    throw InvalidArgument("per_replica holds of no parameter and of no buffer of the model");
  }
  if (options.compression.codec && count == model.parameters().size()) {
    throw InvalidArgument(fmt::format("codec {} with {}: no gradient is left to be sent",
                                      options.compression.codec->name(), who));
  }
  if (options.ema_decay > 0) {
    throw InvalidArgument(fmt::format("ema_decay {} with {}: parameters have several values",
                                      options.ema_decay, who));
  }
}

void require_rules(const TrainerOptions& options, const Optimizer& optimizer,
                   const WrappedModel& model) {
  const bool corrected = options.compression.momentum_correction.has_value();
  const auto& clip = options.clip;
  if (corrected && (clip.norm > 0 || clip.parameter_norm > 0 || clip.value > 0)) {
    throw InvalidArgument(
        "clip with momentum correction: what is sent has momentum in it already; "
        "compression.clamp bounds gradients before that");
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto& name = model.name(p);
    const auto& rule = optimizer.rule_of(model.names(p));
    const bool is_torch = std::holds_alternative<TorchOptim>(rule);
    if (is_torch && model.row_sparse(p)) {
      throw Unsupported(fmt::format("row-sparse \"{}\" with {}: rows are updated by {}", name,
                                    text_of(rule), names_of_rules()));
    }
    if (is_torch && model.is_per_replica(p)) {
      throw Unsupported(fmt::format(
          "per-replica \"{}\" with {}: what logical workers have for themselves is updated by {}",
          name, text_of(rule), names_of_rules()));
    }
    if (is_torch && model.owner(p) >= 0) {
      throw Unsupported(fmt::format("\"{}\" has an owner, with {}: it is updated by {}", name,
                                    text_of(rule), names_of_rules()));
    }
    const bool coded = !model.row_sparse(p) && !model.is_per_replica(p) && model.owner(p) < 0;
    if (!corrected || !coded) continue;
    const auto* const sgd = std::get_if<Sgd>(&rule);
    if (sgd != nullptr && sgd->momentum == 0 && sgd->weight_decay == 0) continue;
    throw InvalidArgument(fmt::format(
        "\"{}\" with {}, and momentum correction, which has momentum and weight decay of "
        "its own: use Sgd without either",
        name, text_of(rule)));
  }
}

void require_offered_there(const TrainerOptions& options, const WrappedModel& model) {
  if (model.device().is_cpu()) return;
  const auto refuse = [&](const std::string& what) {
    throw Unsupported(fmt::format("{} in a Trainer of a model on {}: \"{}\" has to be on the CPU",
                                  what, model.device().str(), options.name));
  };
  if (options.pipeline) refuse("a pipeline");
  if (options.compression.codec) refuse(fmt::format("codec {}", options.compression.codec->name()));
  if (has_per_replica(options)) refuse(who_is_per_replica(options));
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.row_sparse(p)) refuse(fmt::format("row-sparse parameter \"{}\"", model.name(p)));
  }
}

}  // namespace tutti
