#include "torch/shards/trainer_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sync/nodes/logical_workers.h"
#include "torch/model/arithmetic.h"
#include "torch/model/divide.h"
#include "torch/model/type_text.h"
#include "torch/optim/torch_rule.h"
#include "torch/shards/pipeline_settings.h"
#include "tutti/error.h"

namespace tutti {
namespace {

const std::string kRuleOf = "rule of ";
const std::string kRuleOfBuffer = "rule of buffer ";

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

CodingOptions coding_options_of(const TrainerOptions& options, const Plan& plan,
                                const SharedModel& shared) {
  return {.compression = options.compression,
          .divisor = divisor_of(options.divide),
          .logical_workers = logical_workers(options.shards, options.logical_workers),
          .shards = options.shards,
          .name = options.name,
          .values = [&plan, &shared](std::uint32_t p) -> ParameterValues {
            return {shared.master(p), plan.parameters()[p].node_type};
          }};
}

/// Per parameter, the rank that has the first shard of the logical worker that owns it.
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
          .divisor = divisor_of(options.divide),
          .node_boundaries = node_boundaries_of(options),
          .workers_per_shard = workers_per_shard(options),
          .owners = owners_of(options, model, workers),
          .coded = options.compression.codec != nullptr,
          .sync_buffers = false,
          .desync_check_every = options.desync_check_every,
          .reports_magnitude = true,
          .deadline = options.deadline,
          .hint =
              "; every worker has to call step(), and what else all make together, as often as the "
              "others",
          .updates_in_place = true};
}

namespace {

/// Whether a run that resumes from a checkpoint must have the same setting, or workers alone.
enum class Shared { by_run, by_workers };

struct Setting {
  std::string name;
  std::string text;
  Shared shared = Shared::by_run;
};

/// The table of a Trainer's options: the log prints it, workers compare it, and what decides bits
/// is among the facts of a checkpoint.
std::vector<Setting> setting_table(const TrainerOptions& options, const Optimizer& optimizer,
                                   const WrappedModel& model) {
  constexpr auto kByWorkers = Shared::by_workers;
  std::vector<Setting> table{
      {"name", options.name, kByWorkers},
      {"torch", TORCH_VERSION, kByWorkers},
      {"instruction set", instruction_set(), kByWorkers},
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
      {"speeds", options.speeds.empty() ? "equal" : fmt::format("{}", options.speeds), kByWorkers},
      {"max_consecutive_drops", std::to_string(options.max_consecutive_drops), kByWorkers},
      {"desync_check_every", std::to_string(options.desync_check_every), kByWorkers},
      {"audit_every", std::to_string(options.audit_every), kByWorkers},
      {"hash_every", std::to_string(options.hash_every), kByWorkers}};
  if (const auto level = cpu_level(); !level.empty()) table.push_back({"cpu level", level});
  if (options.pipeline) table.push_back({"pipeline", text_of(*options.pipeline), kByWorkers});
  if (options.divide != Divide::by_weight) {
    table.push_back({"divide", std::string(name_of(options.divide))});
  }
  if (options.order.text() != SampleOrder().text()) {
    table.push_back({"order", options.order.text()});
  }
  if (options.compression.codec) table.push_back({"codec", text_of(options.compression)});
  if (options.compression.codec || has_per_replica(options)) {
    table.push_back({"logical workers", std::to_string(options.logical_workers)});
  }
  if (options.compression.codec) {
    table.push_back(
        {"message_format", std::string(name_of(options.compression.message_format)), kByWorkers});
  }
  if (has_per_replica(options)) {
    table.push_back(
        {"averaging",
         options.averaging
             ? fmt::format("{}, optimizer state {}, fusion {}", options.averaging->name(),
                           name_of(options.state_at_averaging), options.compression.fusion)
             : "none"});
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    table.push_back({kRuleOf + model.name(p), text_of(optimizer.rule_of(model.names(p)))});
  }
  for (const auto& [name, tensor] : model.buffers()) {
    table.push_back(
        {kRuleOfBuffer + name, std::string(text_of(buffer_rule_of(options, name, tensor)))});
  }
  return table;
}

}  // namespace

Settings settings_of(const TrainerOptions& options, const Optimizer& optimizer,
                     const WrappedModel& model) {
  Settings settings;
  for (auto& [name, text, shared] : setting_table(options, optimizer, model)) {
    settings.emplace_back(std::move(name), std::move(text));
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
  for (auto& [name, text, shared] : setting_table(options, optimizer, model)) {
    if (shared == Shared::by_run) facts[std::move(name)] = std::move(text);
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    facts["parameter " + model.name(p)] =
        type_text(model.tensor(p)) + (model.row_sparse(p) ? " row-sparse" : "") +
        (model.is_per_replica(p) ? " per-replica" : "") +
        (model.owner(p) >= 0 ? fmt::format(" of logical worker {}", model.owner(p)) : "");
  }
  for (std::size_t b = 0; b < model.buffers().size(); ++b) {
    const auto& [name, tensor] = model.buffers()[b];
    facts["buffer " + name] =
        type_text(tensor) + (model.is_per_replica_buffer(b) ? " per-replica" : "");
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

StaysHere stays_of(const TrainerOptions& options, const GroupState& group, const bool& in_halves) {
  if (!group.spans_hosts()) return {};
  std::vector<int> hosts;
  for (int r = 0; r < group.size(); ++r) hosts.push_back(group.host_of(r));
  const auto logical = logical_workers(options.shards, options.logical_workers);
  const auto carried = assignment_of(options, group.size());
  return [&in_halves, is_coded = options.compression.codec != nullptr, logical,
          is_on_one = on_one_host(logical, carried, hosts),
          carried](const PlanEntry& parameter, int worker, std::int64_t leaf) {
    const bool is_message = is_coded && parameter.is_partitioned();
    if (!is_message && (!parameter.spec.is_per_replica || in_halves)) return false;
    const auto shard = carried[static_cast<std::size_t>(worker)].begin + leaf;
    const auto after =
        std::ranges::find_if(logical, [&](const ShardRange& range) { return shard < range.end; });
    return static_cast<bool>(is_on_one[static_cast<std::size_t>(after - logical.begin())]);
  };
}

std::vector<RuleState> states_of(const Optimizer::Rule& rule) {
  if (auto kernel = update_rule_of(rule)) return std::move(kernel->states);
  std::vector<RuleState> states;
  for (const auto& name : std::get<TorchOptim>(rule).rule->states()) states.push_back({name});
  return states;
}

}  // namespace tutti
