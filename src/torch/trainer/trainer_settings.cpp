#include "torch/trainer/trainer_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sync/step/logical_workers.h"
#include "torch/model/arithmetic.h"
#include "torch/trainer/torch_rule.h"
#include "tutti/error.h"

namespace tutti {
namespace {

const std::string kRuleOf = "rule of ";
const std::string kRuleOfBuffer = "rule of buffer ";

void require_bound(double bound, std::string_view name) {
  if (std::isfinite(bound) && bound >= 0) return;
  throw InvalidArgument(fmt::format("{} {}: must be finite and not negative", name, bound));
}

std::string who_is_per_replica(const TrainerOptions& options) {
  return options.averaging ? fmt::format("averaging {}", options.averaging->name()) : "per_replica";
}

std::string_view text_of(BufferRule rule) {
  switch (rule) {
    case BufferRule::mean:
      return "mean";
    case BufferRule::first:
      return "first";
    case BufferRule::keep:
      return "keep";
  }
  return "?";
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
  const auto& scale = options.loss_scale;
  const bool sized = scale.minimum > 0 && scale.start >= scale.minimum &&
                     scale.start <= scale.maximum && std::isfinite(scale.maximum);
  if (!sized && (scale.dynamic || !(scale.start > 0) || !std::isfinite(scale.start))) {
    throw InvalidArgument(
        fmt::format("loss_scale.start {}: must be between minimum {} and maximum {}", scale.start,
                    scale.minimum, scale.maximum));
  }
  if (scale.dynamic && !(scale.growth >= 1 && std::isfinite(scale.growth) && scale.backoff > 0 &&
                         scale.backoff < 1 && scale.grow_after >= 1)) {
    throw InvalidArgument(
        "loss_scale: growth must be at least 1, backoff between 0 and 1, grow_after at least 1");
  }
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
  if (options.deadline && options.deadline->count() <= 0) {
    throw InvalidArgument("the deadline must be positive");
  }
}

std::vector<std::int64_t> node_boundaries_of(const TrainerOptions& options) {
  std::vector<std::int64_t> cuts;
  if (!options.compression.codec && !has_per_replica(options)) return cuts;
  for (const auto& range : logical_workers(options.shards, options.logical_workers)) {
    cuts.push_back(range.begin);
  }
  return cuts;
}

bool has_per_replica(const TrainerOptions& options) {
  return options.averaging != nullptr || options.per_replica != nullptr;
}

ParameterRoles roles_of(const TrainerOptions& options) {
  ParameterRoles roles;
  roles.row_sparse = options.row_sparse;
  roles.per_replica = options.per_replica;
  roles.placement = options.placement;
  if (options.averaging) roles.per_replica = [](const std::string&) { return true; };
  return roles;
}

void require_per_replica(const TrainerOptions& options, const WrappedModel& model) {
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

CodingOptions coding_options_of(const TrainerOptions& options, const Plan& plan,
                                const SharedModel& shared) {
  return {.compression = options.compression,
          .divisor = Divisor::weights,
          .logical_workers = logical_workers(options.shards, options.logical_workers),
          .shards = options.shards,
          .name = options.name,
          .values = [&plan, &shared](std::uint32_t p) -> ParameterValues {
            return {shared.master(p), plan.parameters()[p].node_type};
          }};
}

/// By parameter, the rank that has the first shard of the logical worker that owns it.
std::vector<int> owners_of(const TrainerOptions& options, const WrappedModel& model, int workers) {
  const auto logical = logical_workers(options.shards, options.logical_workers);
  const auto shards = assignment_of(options, workers);
  std::vector<int> owners;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    owners.push_back(-1);
    if (model.owner(p) < 0) continue;
    const auto first = logical[static_cast<std::size_t>(model.owner(p))].begin;
    const auto carrier = std::find_if(shards.begin(), shards.end(), [&](const ShardRange& range) {
      return first >= range.begin && first < range.end;
    });
    owners.back() = static_cast<int>(carrier - shards.begin());
  }
  return owners;
}

ExchangeOptions exchange_options_of(const TrainerOptions& options, const WrappedModel& model,
                                    int workers) {
  return {.name = options.name,
          .divisor = Divisor::weights,
          .node_boundaries = node_boundaries_of(options),
          .owners = owners_of(options, model, workers),
          .coded = options.compression.codec != nullptr,
          .sync_buffers = false,
          .desync_check_every = options.desync_check_every,
          .reports_magnitude = true,
          .deadline = options.deadline,
          .hint = "; every worker has to call step() as often as the others",
          .updates_in_place = true};
}

Settings settings_of(const TrainerOptions& options, const Optimizer& optimizer,
                     const WrappedModel& model) {
  Settings settings{
      {"name", options.name},
      {"torch", TORCH_VERSION},
      {"instruction set", instruction_set()},
      {"intra-op threads", std::to_string(at::get_num_threads())},
      {"shards", std::to_string(options.shards)},
      {"seed", std::to_string(options.seed)},
      {"schedule", options.schedule.text()},
      {"clip", fmt::format("norm {} parameter norm {} value {}", options.clip.norm,
                           options.clip.parameter_norm, options.clip.value)},
      {"loss scale", options.loss_scale.dynamic
                         ? fmt::format("dynamic from {} × {} after {} × {} in {} … {}",
                                       options.loss_scale.start, options.loss_scale.growth,
                                       options.loss_scale.grow_after, options.loss_scale.backoff,
                                       options.loss_scale.minimum, options.loss_scale.maximum)
                         : fmt::format("{}", options.loss_scale.start)},
      {"ema_decay", fmt::format("{}", options.ema_decay)},
      {"speeds", options.speeds.empty() ? "equal" : fmt::format("{}", options.speeds)},
      {"max_consecutive_drops", std::to_string(options.max_consecutive_drops)},
      {"desync_check_every", std::to_string(options.desync_check_every)},
      {"audit_every", std::to_string(options.audit_every)},
      {"hash_every", std::to_string(options.hash_every)}};
  if (options.order.text() != SampleOrder().text()) {
    settings.emplace_back("order", options.order.text());
  }
  if (options.compression.codec) {
    settings.emplace_back("codec", text_of(options.compression));
    settings.emplace_back("logical workers", std::to_string(options.logical_workers));
    settings.emplace_back("message_format",
                          std::string(name_of(options.compression.message_format)));
  }
  if (has_per_replica(options)) {
    if (!options.compression.codec) {
      settings.emplace_back("logical workers", std::to_string(options.logical_workers));
    }
    settings.emplace_back(
        "averaging",
        options.averaging
            ? fmt::format("{}, optimizer state {}, fusion {}", options.averaging->name(),
                          name_of(options.state_at_averaging), options.compression.fusion)
            : "none");
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    settings.emplace_back(kRuleOf + model.name(p), text_of(optimizer.rule_of(model.names(p))));
  }
  for (const auto& [name, tensor] : model.buffers()) {
    settings.emplace_back(kRuleOfBuffer + name, text_of(buffer_rule_of(options, name, tensor)));
  }
  return settings;
}

std::string summary_of(const Settings& settings) {
  std::string text;
  std::vector<std::pair<std::string, int>> rules;  // and how many follow them
  for (const auto& [name, value] : settings) {
    if (!name.starts_with(kRuleOf)) {
      text += fmt::format(", {} {}", name, value);
      continue;
    }
    const auto rule =
        fmt::format("{} {}", name.starts_with(kRuleOfBuffer) ? "buffers" : "parameters", value);
    const auto known = std::find_if(rules.begin(), rules.end(),
                                    [&](const auto& entry) { return entry.first == rule; });
    if (known == rules.end()) {
      rules.emplace_back(rule, 1);
    } else {
      ++known->second;
    }
  }
  for (const auto& [rule, count] : rules) text += fmt::format(", {} {}", count, rule);
  return text;
}

RunFingerprint facts_of(const TrainerOptions& options, const Optimizer& optimizer,
                        const WrappedModel& model) {
  RunFingerprint facts;
  for (const auto& [name, value] : settings_of(options, optimizer, model)) {
    const bool decides = name != "name" && name != "torch" && name != "instruction set" &&
                         name != "max_consecutive_drops" && name != "desync_check_every" &&
                         name != "audit_every" && name != "hash_every" && name != "speeds" &&
                         name != "message_format";
    if (decides) facts[name] = value;
  }
  const auto text = [](const torch::Tensor& tensor) {
    return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                       fmt::join(tensor.sizes(), ", "));
  };
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    facts["parameter " + model.name(p)] =
        text(model.tensor(p)) + (model.row_sparse(p) ? " row-sparse" : "") +
        (model.is_per_replica(p) ? " per-replica" : "") +
        (model.owner(p) >= 0 ? fmt::format(" of logical worker {}", model.owner(p)) : "");
  }
  for (std::size_t b = 0; b < model.buffers().size(); ++b) {
    const auto& [name, tensor] = model.buffers()[b];
    facts["buffer " + name] = text(tensor) + (model.is_per_replica_buffer(b) ? " per-replica" : "");
  }
  return facts;
}

BufferRule buffer_rule_of(const TrainerOptions& options, const std::string& name,
                          const torch::Tensor& buffer) {
  const auto type = buffer.scalar_type();
  const bool has_mean = type == torch::kFloat64 || type == torch::kFloat32 ||
                        type == torch::kFloat16 || type == torch::kBFloat16;
  for (const auto& [where, rule] : options.buffers) {
    if (!where || !where(name)) continue;
    if (rule == BufferRule::mean && !has_mean) {
      throw InvalidArgument(
          fmt::format("buffer \"{}\": a mean of {}", name, c10::toString(buffer.scalar_type())));
    }
    return rule;
  }
  return has_mean ? BufferRule::mean : BufferRule::first;
}

std::vector<ShardRange> assignment_of(const TrainerOptions& options, int workers) {
  if (options.speeds.empty()) return assign_shards(options.shards, workers);
  if (options.speeds.size() != static_cast<std::size_t>(workers)) {
    throw InvalidArgument(fmt::format("{} speeds for {} workers", options.speeds.size(), workers));
  }
  return assign_shards(options.shards, options.speeds);
}

LossScaleRule loss_scale_rule_of(const LossScale& scale) {
  return {.dynamic = scale.dynamic,
          .growth = scale.growth,
          .backoff = scale.backoff,
          .grow_after = scale.grow_after,
          .minimum = scale.minimum,
          .maximum = scale.maximum};
}

std::vector<RuleState> states_of(const Optimizer::Rule& rule) {
  if (auto kernel = update_rule_of(rule)) return std::move(kernel->states);
  std::vector<RuleState> states;
  for (const auto& name : std::get<TorchOptim>(rule).rule->states()) states.push_back({name});
  return states;
}

}  // namespace tutti
