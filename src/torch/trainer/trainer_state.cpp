#include "torch/trainer/trainer_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/exception_text.h"
#include "base/log_line.h"
#include "kernels/norm.h"
#include "run/leaf_seed.h"
#include "torch/model/row_tensors.h"
#include "torch/model/threads.h"
#include "torch/run/stored_tensors.h"
#include "torch/trainer/start_line.h"
#include "torch/trainer/trainer_settings.h"
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

}  // namespace

TrainerState::TrainerState(const Group& group, torch::nn::Module& module,
                           const Optimizer& optimizer, const TrainerOptions& options)
    : group_(group),
      options_(options),
      module_(module),
      model_(module, roles_of(options), "Trainer"),
      between_(group, options.deadline),
      data_(options.seed, options.order) {
  pin_threads();
  require_options(options_);
  require_sound(model_);
  if (options_.logical_workers == 0) options_.logical_workers = 1;  // hosts
  mine_ = assignment_of(options_, group_.size())[static_cast<std::size_t>(group_.rank())];
  scale_rule_ = loss_scale_rule_of(options_.loss_scale);
  scale_.factor = options_.loss_scale.start;
  std::vector<std::optional<UpdateRule>> rules;
  std::vector<std::shared_ptr<const TorchRule>> torch_rules;
  std::vector<int> states;
  std::vector<std::vector<double>> initial_states;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& rule = optimizer.rule_of(model_.names(p));
    rules.push_back(update_rule_of(rule));
    const auto* const torch = std::get_if<TorchOptim>(&rule);
    torch_rules.push_back(torch != nullptr ? torch->rule : nullptr);
    state_names_.emplace_back();
    initial_states.emplace_back();
    for (const auto& state : states_of(rule)) {
      state_names_.back().push_back(state.name);
      initial_states.back().push_back(state.initial);
    }
    states.push_back(static_cast<int>(state_names_.back().size()));
  }
  require_per_replica(options_, model_);
  require_rules(options_, optimizer, model_);
  const auto settings = settings_of(options_, optimizer, model_);
  exchange_ = std::make_unique<StepExchange>(group_, model_.plan(settings),
                                             exchange_options_of(options_, model_, group_.size()));
  checkpoints_ = std::make_unique<TrainerCheckpoints>(between_, options_, module_,
                                                      facts_of(options_, optimizer, model_));
  board_ = std::make_unique<ShardBoard>(group_, options_.name);
  if (group_.rank() == 0) warn_of_aliases(model_, options_.name);
  shared_ = std::make_unique<SharedModel>(group_, exchange_->plan(), states, options_.ema_decay > 0,
                                          options_.name);
  parameters_ = std::make_unique<SharedParameters>(group_, model_, *shared_);
  model_ = WrappedModel(module, roles_of(options_), "Trainer");
  memory_ = model_.memory();
  memory_.parameters.clear();  // all have the same ones: see ValueCheck
  if (group_.rank() == 0) {
    shared_->refresh_masters();
    fill_initial_states(initial_states);
  }
  torch_optimizers_ = std::make_unique<TileOptimizers>(
      exchange_->plan(), *shared_, std::move(torch_rules), group_.rank(), group_.size());
  if (options_.compression.codec) {
    coded_ = std::make_unique<CodedGradients>(
        *exchange_, coding_options_of(options_, exchange_->plan(), *shared_));
  }
  dense_ = std::make_unique<DenseGradients>(*exchange_);
  rows_ = std::make_unique<RowGradients>(*exchange_);
  if (has_per_replica(options_)) {
    replicas_ = std::make_unique<ReplicaParameters>(
        *exchange_, *board_,
        ReplicaParameters::Model{model_, *shared_, *parameters_, states, state_names_, rules,
                                 initial_states},
        options_);
  }
  update_ =
      std::make_unique<PartitionedUpdate>(*exchange_, *board_, *shared_, sources(),
                                          std::move(rules), torch_optimizers_.get(), options_.clip);
  values_ = std::make_unique<ValueCheck>(exchange_->plan(), group_.rank(), group_.size(),
                                         options_.desync_check_every);
  std::vector<std::uint32_t> all(model_.parameters().size());
  std::iota(all.begin(), all.end(), 0U);
  values_->add(*shared_, all);
  if (replicas_) replicas_->add_to(*values_);
  buffers_ = std::make_unique<ShardBuffers>(model_, *exchange_, options_);
  if (options_.audit_every > 0) {
    audit_ = std::make_unique<Audit>(*exchange_, model_, assignment_of(options_, group_.size()),
                                     options_.audit_every, options_.name);
  }
  if (options_.ema_decay > 0) {
    averages_ = std::make_unique<MovingAverages>(exchange_->plan(), *shared_, options_.ema_decay,
                                                 group_.rank(), group_.size());
  }
  evaluation_ = std::make_unique<TrainerEvaluation>(trained(), between_, steps_,
                                                    [this] { seed_between_steps(); });
  list_parts();
  notes_ = std::make_unique<StepNotes>(
      group_, *board_, module_,
      StepNotes::Options{options_.name, options_.shards, mine_.count() > 0});
  runner_ = std::make_shared<ShardRunner>(
      ShardRunner::Parts{model_, *exchange_, *board_, *buffers_, replicas_.get(), audit_.get(),
                         coded_.get(), states_, *notes_, data_},
      ShardRunner::Options{options_.name, options_.seed, options_.shards, mine_});
  runner_->attach();
  seed_between_steps();
  log_start({model_, options_, group_, optimizer, summary_of(settings), coded_.get(),
             rows_->parameters().size(), replicas_.get()});
}

void TrainerState::fill_initial_states(const std::vector<std::vector<double>>& initial) {
  for (std::size_t p = 0; p < initial.size(); ++p) {
    const auto type = scalar_type_of(exchange_->plan().parameters()[p].node_type);
    for (std::size_t k = 0; k < initial[p].size(); ++k) {
      if (initial[p][k] == 0) continue;
      torch::from_blob(shared_->state(p, static_cast<int>(k)), {model_.tensor(p).numel()}, type)
          .fill_(initial[p][k]);
    }
  }
}

/// Between steps the generator stands where no shard's does.
void TrainerState::seed_between_steps() const {
  torch::manual_seed(leaf_seed(options_.seed, step(), -1));
}

// ---- the first half of a step ----

/// What a parameter holds by hand would be taken for what a backward has left there.
void TrainerState::require_no_gradients() const {
  for (const auto& [name, tensor] : model_.parameters()) {
    if (!tensor.grad().defined()) continue;
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of Trainer \"{}\" holds a gradient that no step has given it: "
        "hand gradients in by shard.gradients(), and let this one go (zero_grad())",
        name, options_.name));
  }
}

void TrainerState::drop(const std::string& why) noexcept {
  between_.set_half(false);
  runner_->drop();
  show_first();
  if (exchange_->is_open()) exchange_->fail(why);
  buffers_->restore();
  states_.drop();
  if (audit_) audit_->drop();
  seed_between_steps();
}

std::int64_t TrainerState::epoch() {
  const auto epoch = data_.position().epoch;
  if (epoch_asked_after_ == steps_) return epoch;
  epoch_asked_after_ = steps_;
  if (++asked_in_vain_ == kPatience && !std::exchange(said_no_samples_, true) &&
      group_.rank() == 0) {
    log_warning(fmt::format(
        "epoch() of \"{}\" stands at {}, and was asked for after each of {} steps in which no "
        "shard asked for samples by shard.indices() or a ShardLoader: such steps count to no "
        "epoch, and a loop until the next one does not end with them",
        options_.name, epoch, kPatience));
  }
  return epoch;
}

void TrainerState::accumulate(const Trainer::Compute& compute, bool in_halves,
                              const torch::nn::Module* active) {
  if (between_.is_half()) {
    const std::string text = "accumulate() between accumulate() and apply(): the step is dropped";
    drop(text);  // the others may wait in apply()
    throw InvalidArgument(text);
  }
  between_.require("accumulate()");
  exchange_->require_running();
  exchange_->number_next(step());
  std::optional<ActiveParameters> only;
  try {
    trained().require_untouched();
    model_.require_unchanged_list();
    rate_factor_ = options_.schedule(step(), data_.position().epoch);
    require_no_gradients();
    runner_->open(step(), scale_.factor);
    active_ = 0;
    if (active != nullptr) {
      active_ = only.emplace(model_, *active, options_.name).digest();
      active_set_ = only->set();
      runner_->narrow(active_set_);
    }
    look_at_turn();
  } catch (...) {
    exchange_->fail(exception_text());
    throw;
  }
  exchange_->open_shards(mine_.begin, mine_.count());
  notes_->open(step(), active_, in_halves);
  try {
    if (audit_) audit_->open(step(), states_);
    buffers_->open(mine_.begin);
    runner_->run(compute);
    only.reset();
    show_first();
    buffers_->publish();
    notes_->publish();
    if (audit_) audit_->publish();
    seed_between_steps();
    exchange_->arrive(memory_);
    notes_->read();
    require_values();
    if (audit_) audit_->compare();
    verdict_ = update_->judge(scale_.factor);
    if (replicas_) replicas_->judge(step(), scale_.factor, options_.clip, verdict_);
  } catch (...) {
    drop(exception_text());
    throw;
  }
  between_.set_half(true);
}

/// A checkpoint holds steps, and the program chooses turns: one that was written inside a round
/// may be followed by the wrong one.
void TrainerState::look_at_turn() {
  if (!std::exchange(resumes_, false) || group_.rank() != 0) return;
  const auto next = turns_.next();
  if (!next || *next == active_) return;
  const auto first = std::ranges::find(active_set_, 1) - active_set_.begin();
  log_warning(fmt::format(
      "step {} of \"{}\", the first one after load(), is about {}; in the rounds of {} turns "
      "before the checkpoint another turn comes here: save after the last turn of a round, or "
      "choose the turn by steps()",
      step(), options_.name,
      active_ == 0
          ? std::string("all models")
          : fmt::format("the model of \"{}\"", model_.name(static_cast<std::size_t>(first))),
      turns_.round()));
}

// ---- checks of values ----

/// Where parameters are going to be looked at in the step that comes, all workers know what they
/// are before anybody's program goes on. Among collectives.
void TrainerState::expect_values() {
  values_->expect(step());
  if (!values_->expects()) return;
  // All workers come to it: nobody's program goes on before.
  checkpoints_->require_equal_kept(fmt::format("before step {}", step()));
}

/// Once all shards have run, and before anybody updates anything.
void TrainerState::require_values() {
  if (!values_->expects()) return;
  if (const auto p = values_->first_changed()) {
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of \"{}\" was changed between steps, or by a shard, in a way that torch "
        "does not count (data(), a pointer); all workers share it, so each one's change would "
        "count: change values inside trainer.edit()",
        model_.name(*p), options_.name));
  }
  exchange_->barrier("the check of parameters in");
}

StepResult TrainerState::apply() {
  between_.require_half("apply()");
  between_.set_half(false);
  // Nobody changes what another one, between the halves, may still be looking at.
  if (notes_->in_halves()) {
    try {
      exchange_->barrier("apply() in");
    } catch (...) {
      drop(exception_text());
      throw;
    }
  }
  const bool applies = verdict_.refusal.empty();
  const auto& outcome = exchange_->complete([&] {
    if (applies) {
      update_->apply(verdict_, rate_factor_);
      if (replicas_) replicas_->apply(rate_factor_);
      static const std::vector<std::int64_t> none;
      buffers_->finish(*board_, replicas_ ? replicas_->dropped() : none,
                       replicas_ && replicas_->is_due());
    } else {
      buffers_->restore();
    }
    exchange_->note_buffers(memory_);
  });
  auto report = outcome.report;
  if (applies) update_->commit(outcome.touched, report);
  auto result = result_of(report);
  if (applies) {
    if (replicas_) replicas_->commit();
    parameters_->written();
    if (averages_) averages_->follow();
    states_.commit(
        [&](std::int64_t shard) { return !replicas_ || !replicas_->was_dropped(shard); });
  }
  states_.drop();
  const auto& request = notes_->request();
  if (request) data_.advance(*request, options_.shards);
  result.ends_epoch = request && data_.position().taken == 0;
  ++steps_;
  if (request) note_samples();
  if (active_ != 0 || !turns_.latest().empty()) turns_.note(active_);
  if (audit_) audit_->step_is_over();
  seed_between_steps();
  const auto unbearable = take_note(result);
  if (values_->due(step())) {
    exchange_->run_collectives([&] { expect_values(); });
  } else {
    values_->expect(step());
  }
  if (averages_ && checkpoints_->hashes(result.step)) {
    exchange_->run_collectives([&] { group_.barrier(between_.waits("averages")); });
  }
  checkpoints_->log(result);
  if (!unbearable.empty()) throw Diverged(unbearable);
  return result;
}

StepResult TrainerState::result_of(const StepReport& report) {
  auto metrics = notes_->take_metrics();
  const auto loss = std::find_if(metrics.begin(), metrics.end(), [](const Metric& metric) {
    return metric.name == kLossName && metric.kind != MetricKind::gather;
  });
  StepResult result;
  result.step = step();
  result.applied = verdict_.refusal.empty();
  result.dropped_because = verdict_.refusal;
  result.loss = loss != metrics.end() ? loss->value : std::numeric_limits<double>::quiet_NaN();
  result.weight = report.weight;
  result.shards = notes_->ran();
  const bool clips = options_.clip.norm > 0 || options_.clip.parameter_norm > 0;
  if (clips) result.gradient_norm = verdict_.norm;
  result.rate_factor = rate_factor_;
  result.loss_scale = scale_.factor;
  result.metrics = std::move(metrics);
  result.report = report;
  if (replicas_ && result.applied) result.dropped_locally = replicas_->dropped();
  if (replicas_ && replicas_->are_all()) {
    result.report.bytes = result.applied ? replicas_->averaging_bytes() : 0;
    result.report.collectives = result.report.buckets = result.report.bytes > 0 ? 1 : 0;
  }
  return result;
}

/// Whose traffic is reported in this order.
std::vector<GradientSource*> TrainerState::sources() const {
  std::vector<GradientSource*> all;
  if (coded_) all.push_back(coded_.get());
  all.insert(all.end(), {dense_.get(), rows_.get()});
  return all;
}

TrafficReport TrainerState::traffic() const {
  auto report = merged(dense_->traffic(), rows_->traffic());
  if (coded_) report = merged(coded_->traffic(), report);
  if (!replicas_ || !replicas_->are_all()) return report;
  report.collectives = 0;  // no gradient was exchanged
  if (replicas_->averaging() == nullptr) return report;
  const auto& averaging = replicas_->averaging()->traffic();
  report.collectives = averaging.collectives;
  return merged(std::move(report), averaging);
}

/// What the step means for those to come; what is to be said after too many that were dropped.
std::string TrainerState::take_note(const StepResult& result) {
  if (result.applied) {
    dropped_in_a_row_ = 0;
    bool shrank = false;
    if (result.dropped_locally.empty()) {
      grow(scale_rule_, scale_);
    } else {
      shrank = shrink(scale_rule_, scale_);
      if (group_.rank() == 0) {
        log_warning(
            fmt::format("step {} was dropped by logical workers {}: their gradients are not finite",
                        result.step, fmt::join(result.dropped_locally, ", ")));
      }
    }
    return replicas_ ? replicas_->note_drops(shrank, options_.max_consecutive_drops) : "";
  }
  if (group_.rank() == 0) {
    log_warning(
        fmt::format("step {} was dropped by all workers: {}", result.step, result.dropped_because));
  }
  if (!verdict_.finite && shrink(scale_rule_, scale_)) return "";
  if (++dropped_in_a_row_ < options_.max_consecutive_drops) return "";
  return fmt::format("{} steps in succession were dropped, the last one (step {}) because {}",
                     dropped_in_a_row_, result.step, result.dropped_because);
}

// ---- between the halves ----

torch::Tensor TrainerState::folded_gradient(const std::string& name) {
  between_.require_half("gradient()");
  return folded_gradient(trained().parameter_of(name));
}

/// Undefined if no shard touched it.
torch::Tensor TrainerState::folded_gradient(std::size_t parameter) {
  if (!exchange_->nodes().touched(parameter)) return {};
  if (model_.is_per_replica(parameter))
    return replicas_->gradient(static_cast<std::uint32_t>(parameter));
  const auto& tensor = model_.tensor(parameter);
  const auto& entry = exchange_->plan().parameters()[parameter];
  const auto type = scalar_type_of(entry.node_type);
  if (entry.row_sparse()) {
    const auto p = static_cast<std::uint32_t>(parameter);
    OutgoingRows rows(tensor, type, rows_->max_touched(p));
    rows_->read_rows(p, [&](const RowList& some) { rows.append(some); });
    return rows.tensor(type);
  }
  auto gradient = torch::empty_strided(tensor.sizes(), tensor.strides(), type);
  update_->read_gradient(verdict_, static_cast<std::uint32_t>(parameter),
                         static_cast<std::byte*>(gradient.data_ptr()));
  return gradient;
}

double TrainerState::gradient_norm() {
  between_.require_half("gradient_norm()");
  if (verdict_.norm) return *verdict_.norm;
  double total = 0;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    if (!exchange_->nodes().touched(p)) continue;
    if (model_.row_sparse(p)) {
      total += rows_->squares_of(static_cast<std::uint32_t>(p));
      continue;
    }
    if (!model_.is_per_replica(p)) total += squares_of(folded_gradient(p));
  }
  if (replicas_) total += replicas_->squares();
  return std::sqrt(total);
}

}  // namespace tutti
