#include "torch/trainer/trainer_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/log_line.h"
#include "comm/group_state.h"
#include "run/data/leaf_seed.h"
#include "run/state/progress_run_parts.h"
#include "torch/classes/classifiers_run_part.h"
#include "torch/gradients/fold_threads.h"
#include "torch/run/model_run_parts.h"
#include "torch/run/stored_tensors.h"
#include "torch/shards/pipeline_settings.h"
#include "torch/shards/trainer_settings.h"
#include "torch/trainer/run_parts.h"
#include "torch/trainer/start_line.h"
#include "torch/trainer/step_parts.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

/// What would go wrong later is refused while nothing has changed.
void require_sound(const WrappedModel& model) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    ParameterHooks::require_free(model.tensor(p), model.label(p));
  }
  for (const auto& [name, tensor] : model.buffers()) {
    require_storable(fmt::format("buffer \"{}\"", name), tensor);
  }
  model.require_apart();
}

/// The rule of each parameter, and the tensors of state that it keeps.
struct ParameterRules {
  std::vector<std::optional<UpdateRule>> kernels;       ///< absent: torch's
  std::vector<std::shared_ptr<const TorchRule>> torch;  ///< null: a kernel's
  std::vector<int> states;                              ///< how many
  std::vector<std::vector<std::string>> names;          ///< of them
  std::vector<std::vector<double>> initial;             ///< values of them
};

ParameterRules rules_of(const WrappedModel& model, const Optimizer& optimizer) {
  ParameterRules rules;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto& rule = optimizer.rule_of(model.names(p));
    rules.kernels.push_back(update_rule_of(rule));
    const auto* const torch = std::get_if<TorchOptim>(&rule);
    rules.torch.push_back(torch != nullptr ? torch->rule : nullptr);
    auto& names = rules.names.emplace_back();
    auto& initial = rules.initial.emplace_back();
    for (const auto& state : states_of(rule)) {
      names.push_back(state.name);
      initial.push_back(state.initial);
    }
    rules.states.push_back(static_cast<int>(names.size()));
  }
  return rules;
}

/// Which option a Trainer cannot have with layers that are split over its workers, and why.
std::string refusal_with_split_layers(const TrainerOptions& options, c10::Device where) {
  if (!where.is_cpu()) {
    return fmt::format(
        "a model on {}: its workers exchange memory of the CPU, where all of the "
        "model has to be",
        where.str());
  }
  if (options.averaging || options.per_replica) {
    return "parameters per replica: there is one copy of the layer for all";
  }
  if (options.audit_every != 0 && options.audit_every != TrainerOptions().audit_every) {
    return "audit_every: an audit computes a shard on one worker alone, and the layer's calls need "
           "all";
  }
  if (options.ema_decay > 0) {
    return "ema_decay: the layer would stay out of the moving averages";
  }
  return "";
}

/// Threads of the host that fold and update what this worker owns.
int threads_of(const WrappedModel& model, const Group& group) {
  return model.device().is_cpu() ? 1 : fold_threads(*group.state());
}

/// What workers read of the model, on the host.
ModelMemory memory_of(const WrappedModel& model, const SharedModel& shared,
                      const HostCopies* host) {
  if (host == nullptr) return model.memory();
  auto memory = host->memory();
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    memory.parameters.push_back(shared.value(p));
  }
  return memory;
}

}  // namespace

TrainerObjects::TrainerObjects(TrainerWorld& own_world)
    : world(own_world),
      group(own_world.group),
      options(own_world.options),
      module(own_world.module),
      model(module, roles_of(options), "Trainer"),
      between(group, options.deadline),
      data(options.seed, options.order) {
  const auto& optimizer = world.optimizer;
  states = ShardStates(model.device());
  const auto& team = group.state()->team();
  require_options(options);
  require_sound(model);
  require_offered_there(options, model);
  if (!model.device().is_cpu()) {
    require_deterministic(model.device(), options.name);
    deterministic = std::make_unique<DeterministicAlgorithms>();
  }
  require_pipeline(options, group);
  if (options.logical_workers == 0) options.logical_workers = 1;  // whatever runs
  mine = assignment_of(options, group.size())[static_cast<std::size_t>(group.rank())];
  scale.factor = options.loss_scale.start;
  auto rules = rules_of(model, optimizer);
  state_names = std::move(rules.names);
  classifiers =
      TrainedClassifiers::find(group, module,
                               {.name = options.name,
                                .shards = options.shards,
                                .clip = options.clip,
                                .deadline = options.deadline,
                                .refusal = refusal_with_split_layers(options, model.device())});
  if (classifiers) {
    if (options.pipeline) throw Unsupported("split layers with a pipeline (docs/pipeline.md)");
    leave_audits_out("its split layers' calls need all workers");
  }
  if (options.pipeline) leave_audits_out("a pipeline computes its shards");
  require_per_replica(options, model);
  require_rules(options, optimizer, model);
  const auto settings = settings_of(options, optimizer, model);
  auto exchange_options = exchange_options_of(options, model, group.size());
  exchange_options.stays = stays_of(options, *group.state(), in_halves);
  exchange_options.for_tiles = tiles_on(threads_of(model, group));
  exchange = std::make_unique<StepExchange>(group, model.plan(settings), exchange_options);
  checkpoints = std::make_unique<TrainerCheckpoints>(between, world, state,
                                                     facts_of(options, optimizer, model));
  board = std::make_unique<ShardBoard>(exchange->memory());
  world.move_in(model, exchange->plan(), rules.initial);
  shared = world.shared.get();
  parameters = world.parameters.get();
  model = WrappedModel(module, roles_of(options), "Trainer");
  if (!model.device().is_cpu()) {
    host = std::make_unique<HostCopies>(model, group, options.deadline, options.name,
                                        HostCopies::Of::buffers);
    exchange->let_sums_leave([this](std::span<const std::uint32_t> updated) {
      std::vector<std::uint32_t> touched;
      std::ranges::copy_if(updated, std::back_inserter(touched),
                           [this](std::uint32_t p) { return exchange->nodes().touched(p); });
      parameters->give_early(touched);
    });
  }
  memory = memory_of(model, *shared, host.get());
  // The workers of a host have the same ones (see ValueCheck): its first one speaks for them.
  if (!group.state()->spans_hosts() || team.rank != 0) memory.parameters.clear();
  for (std::size_t p = 0; p < memory.parameters.size(); ++p) {
    if (model.is_per_replica(p)) memory.parameters[p] = nullptr;
  }
  torch_optimizers = std::make_unique<TileOptimizers>(
      exchange->plan(), *shared, std::move(rules.torch), team.rank, team.size());
  if (options.compression.codec) {
    coded = std::make_unique<CodedGradients>(*exchange,
                                             coding_options_of(options, exchange->plan(), *shared));
  }
  dense = std::make_unique<DenseGradients>(*exchange);
  rows = std::make_unique<RowGradients>(*exchange);
  if (coded) sources.push_back(coded.get());
  sources.insert(sources.end(), {dense.get(), rows.get()});
  if (has_per_replica(options)) {
    replicas = std::make_unique<ReplicaParameters>(
        *exchange, *board,
        ReplicaParameters::Model{model, *shared, *parameters, rules.states, state_names,
                                 rules.kernels, rules.initial},
        options);
  }
  update = std::make_unique<PartitionedUpdate>(*exchange, *board, *shared, sources,
                                               std::move(rules.kernels), torch_optimizers.get(),
                                               options.clip);
  values = std::make_unique<ValueCheck>(*exchange, model, *parameters, options.desync_check_every,
                                        options.name);
  std::vector<std::uint32_t> all;
  for (std::uint32_t p = 0; p < model.parameters().size(); ++p) {
    if (!model.is_per_replica(p) || replicas->has_first()) all.push_back(p);
  }
  values->add(*shared, all);
  if (replicas) replicas->add_to(*values);
  if (options.pipeline) {
    keepers = std::make_unique<KeeperBoard>(exchange->memory(), model, options.name);
  }
  buffers = std::make_unique<ShardBuffers>(model, *exchange, *board, options, mine.begin,
                                           replicas.get(), keepers.get(), host.get());
  if (options.audit_every > 0) {
    audit =
        std::make_unique<Audit>(*exchange, model, states, assignment_of(options, group.size()),
                                replicas ? logical_workers(options.shards, options.logical_workers)
                                         : std::vector<ShardRange>(),
                                options.audit_every, options.name);
  }
  if (options.ema_decay > 0) {
    averages = std::make_unique<MovingAverages>(exchange->plan(), *shared, options.ema_decay,
                                                team.rank, team.size());
  }
  folded = std::make_unique<FoldedGradients>(model, *exchange, *rows, *update, replicas.get());
  evaluation = std::make_unique<TrainerEvaluation>(trained(), between, steps,
                                                   [this] { seed_between_steps(); });
  list_run_parts();
  notes = std::make_unique<StepNotes>(
      group, *board, module, data,
      StepNotes::Options{.name = options.name,
                         .shards = options.shards,
                         .computes = mine.count() > 0,
                         .schedule = options.schedule.text(),
                         .averaging = options.averaging ? options.averaging->name() : "",
                         .workers_per_shard = workers_per_shard(options)});
  runner = std::make_shared<ShardRunner>(
      ShardRunner::Parts{model, *exchange, *parameters, sources, *board, *buffers, replicas.get(),
                         audit.get(), states, *notes, data, classifiers.get(), host.get()},
      ShardRunner::Options{options.name, options.seed, options.shards, mine,
                           options.pipeline.has_value()});
  runner->attach();
  if (options.pipeline) {
    pipeline = std::make_unique<PipelineRunner>(
        PipelineRunner::Parts{group, model, *exchange, *runner, *buffers, *keepers, *notes},
        *options.pipeline, options.name, mine);
  }
  list_step_parts();
  seed_between_steps();
}

void TrainerObjects::log_start() const {
  tutti::log_start({model, options, group, world.optimizer,
                    summary_of(settings_of(options, world.optimizer, model)), coded.get(),
                    rows->parameters().size(), replicas.get(), exchange->plan().slot_bytes(),
                    shared->bytes(), threads_of(model, group)});
}

void TrainerObjects::spread_from_first_rank() {
  if (coded) coded->spread_kept();
  if (replicas) replicas->bring_from_first_rank();
}

/// An audit computes a shard once more on one worker alone.
void TrainerObjects::leave_audits_out(const std::string& why) {
  if (options.audit_every > 0 && group.rank() == 0) {
    log_info(fmt::format("trainer: no audit of \"{}\": {}", options.name, why));
  }
  options.audit_every = 0;
}

/// Each phase of a step calls them in this order.
void TrainerObjects::list_step_parts() {
  step_parts.add(*notes);
  step_parts.add(*values);
  if (keepers) step_parts.add(*keepers);
  if (audit) step_parts.add(*audit);
  if (classifiers) step_parts.add(classifiers->part_with(exchange->nodes()));
  step_parts.add<UpdateStepPart>(*update, sources);
  step_parts.add<DropsStepPart>(options.loss_scale, scale, dropped_in_a_row,
                                options.max_consecutive_drops, group.rank() == 0);
  if (replicas) step_parts.add(*replicas);
  step_parts.add(*buffers);
  step_parts.add(*parameters);
  if (averages) step_parts.add<AveragesStepPart>(*averages, *exchange, between);
  step_parts.add<StatesStepPart>(states, replicas.get());
  step_parts.add<ProgressStepPart>(*notes, ProgressStepPart::Progress{data, epochs, turns, steps},
                                   options.shards);
  step_parts.add<GeneratorStepPart>([this] { seed_between_steps(); });
}

/// Other hosts have sent what is asked of a step in halves alone.
void TrainerObjects::require_all_in_halves() const {
  if (!replicas || !replicas->differ_on_hosts() || notes->all_in_halves()) return;
  throw Unsupported(
      "gradients of per-replica parameters on several hosts in a step that not all workers take in "
      "halves (docs/clusters.md)");
}

/// Between steps the generator stands where no shard's does. While another thread is in a step it
/// is that one's.
void TrainerObjects::seed_between_steps() const {
  const Stepping stepping(group.state()->job(), fmt::format("Trainer \"{}\"", options.name));
  if (!stepping.elsewhere().empty()) return;
  torch::manual_seed(leaf_seed(options.seed, step(), -1));
}

TrainedModel TrainerObjects::trained() {
  return {options,     module,   model,          *exchange,      *shared,
          *parameters, *buffers, replicas.get(), averages.get(), classifiers.get()};
}

/// The run's state, once, behind what the program keeps. The order is that of state_sha256().
void TrainerObjects::list_run_parts() {
  state.add(world.kept);
  const auto& plan = exchange->plan();
  state.add<ParametersRunPart>(plan, *shared, *update, state_names);
  if (coded) state.add<ResidualsRunPart>(plan, *coded);
  state.add<ReplicasRunPart>(replicas.get());
  state.add<BuffersRunPart>(*buffers);
  state.add<AveragesRunPart>(plan, *shared, averages.get());
  state.add<ShardStatesRunPart>(states, options.shards, mine);
  state.add<ClassifiersRunPart>(classifiers.get());
  state.add<OptimizerNumbersRunPart>(*torch_optimizers);
  state.add<DataOrderRunPart>(data);
  state.add<LossScaleRunPart>(scale);
  state.add<TurnsRunPart>(turns);
  state.add<StepsRunPart>(steps, dropped_in_a_row);
}

}  // namespace tutti
