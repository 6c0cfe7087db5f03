#include "torch/trainer/trainer_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "base/exception_text.h"
#include "base/log_line.h"
#include "kernels/norm.h"
#include "memory/memory_need.h"
#include "torch/model/module_modes.h"
#include "torch/model/row_tensors.h"
#include "torch/model/threads.h"
#include "torch/trainer/trainer_checkpoint.h"
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

void warn_of_aliases(const WrappedModel& model, const std::string& name) {
  const auto aliased = model.with_aliases();
  if (aliased.empty()) return;
  log_warning(fmt::format(
      "trainer \"{}\": another tensor (a view, detach(), data(), or one that a graph keeps) lies "
      "in "
      "the memory of parameter \"{}\"{}; it stays where it is and does not follow the training",
      name, aliased.front(),
      aliased.size() > 1 ? fmt::format(", and of {} more", aliased.size() - 1) : ""));
}

/// Logs which workers have no shard in any step.
void warn_of_idle(const std::vector<ShardRange>& ranges, const TrainerOptions& options,
                  const Group& group) {
  std::string idle;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    if (ranges[r].count() == 0) idle += fmt::format(" {}", group.job_rank(static_cast<int>(r)));
  }
  if (idle.empty()) return;
  log_warning(
      fmt::format("\"{}\": of {} workers these compute no shard:{}; a step has {} of them "
                  "(TrainerOptions::shards), and whoever has the most computes {}",
                  options.name, group.size(), idle, options.shards,
                  std::ranges::max(ranges, {}, &ShardRange::count).count()));
}

}  // namespace

TrainerState::TrainerState(const Group& group, torch::nn::Module& module,
                           const Optimizer& optimizer, const TrainerOptions& options)
    : group_(group),
      options_(options),
      module_(module),
      model_(module, roles_of(options), "Trainer"),
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
  std::vector<double> initial_states;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& rule = optimizer.rule_of(model_.names(p));
    rules.push_back(update_rule_of(rule));
    const auto* const torch = std::get_if<TorchOptim>(&rule);
    const auto* const adagrad = std::get_if<Adagrad>(&rule);
    initial_states.push_back(adagrad != nullptr ? adagrad->initial_sum : 0);
    torch_rules.push_back(torch != nullptr ? torch->rule : nullptr);
    state_names_.push_back(states_of(rule));
    states.push_back(static_cast<int>(state_names_.back().size()));
  }
  require_per_replica(options_, model_);
  require_rules(options_, optimizer, model_);
  const auto settings = settings_of(options_, optimizer, model_);
  facts_ = facts_of(options_, optimizer, model_);
  exchange_ = std::make_unique<StepExchange>(group_, model_.plan(settings),
                                             exchange_options_of(options_, model_, group_.size()));
  require_log();
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
  rows_ = std::make_unique<RowGradients>(*exchange_);
  if (has_per_replica(options_)) {
    replicas_ = std::make_unique<ReplicaParameters>(
        *exchange_, *board_,
        ReplicaParameters::Model{model_, *shared_, *parameters_, states, state_names_, rules,
                                 initial_states},
        options_);
  }
  update_ =
      std::make_unique<PartitionedUpdate>(*exchange_, *board_, *shared_, *rows_, std::move(rules),
                                          torch_optimizers_.get(), options_.clip, coded_.get());
  values_ = std::make_unique<ValueCheck>(exchange_->plan(), group_.rank(), group_.size(),
                                         options_.desync_check_every);
  std::vector<std::uint32_t> all(model_.parameters().size());
  std::iota(all.begin(), all.end(), 0U);
  values_->add(*shared_, all);
  if (replicas_) replicas_->add_to(*values_);
  zero_copy_ = std::make_unique<ZeroCopyGradients>(*exchange_);
  buffers_ = std::make_unique<ShardBuffers>(model_, *exchange_, options_);
  if (options_.audit_every > 0) {
    audit_ = std::make_unique<Audit>(*exchange_, model_, assignment_of(options_, group_.size()),
                                     options_.audit_every, options_.name);
  }
  if (options_.ema_decay > 0) {
    averages_ = std::make_unique<MovingAverages>(exchange_->plan(), *shared_, options_.ema_decay,
                                                 group_.rank(), group_.size());
  }
  seed_between_steps();
  warn_of_unmatched(model_, options_.name, group_);
  if (group_.rank() != 0) return;
  for (const auto k : optimizer.unused_groups(model_.all_names())) {
    log_warning(fmt::format(
        "group {} of the optimizer of \"{}\" holds for none of its parameters, or for those of "
        "earlier groups alone",
        k + 1, options_.name));
  }
  const auto ranges = assignment_of(options_, group_.size());
  warn_of_idle(ranges, options_, group_);
  std::string shares;
  for (const auto& range : ranges) shares += fmt::format(" [{}, {})", range.begin, range.end);
  std::string own;  // of this program: runs are not told apart by it
  if (!options_.log.empty()) {
    own += fmt::format(", log {} (metrics every {})", options_.log, options_.metrics_every);
  }
  if (coded_) {
    own += fmt::format(", {} for messages and residuals of each logical worker, {} of each worker",
                       format_bytes(coded_->bytes_per_logical_worker()),
                       format_bytes(coded_->bytes_per_worker()));
  }
  if (!rows_->parameters().empty()) {
    own += fmt::format(", {} row-sparse parameters", rows_->parameters().size());
  }
  if (replicas_) own += replicas_->text();
  if (model_.owned() > 0) own += fmt::format(", {} parameters with an owner", model_.owned());
  if (options_.deadline) own += fmt::format(", deadline {} ms", options_.deadline->count());
  log_info(fmt::format("trainer: {} parameters, {} workers, their shards{}{}{}",
                       model_.parameters().size(), group_.size(), shares, summary_of(settings),
                       own));
}

void TrainerState::attach() {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    model_.tensor(p).mutable_grad().reset();  // of whoever trained the model before
    hooks_.push_back(
        std::make_unique<ParameterHooks>(model_.tensor(p), model_.label(p), p, weak_from_this()));
  }
}

void TrainerState::fill_initial_states(const std::vector<double>& initial) {
  for (std::size_t p = 0; p < initial.size(); ++p) {
    if (initial[p] == 0) continue;
    const auto type = scalar_type_of(exchange_->plan().parameters()[p].node_type);
    torch::from_blob(shared_->state(p, 0), {model_.tensor(p).numel()}, type).fill_(initial[p]);
  }
}

/// Between steps the generator stands where no shard's does.
void TrainerState::seed_between_steps() const { torch::manual_seed(seed_of(-1)); }

// ---- the first half of a step ----

void TrainerState::require_open(const char* what) const {
  if (!accumulated_) throw InvalidArgument(fmt::format("{} before accumulate()", what));
}

void TrainerState::require_between_steps(const char* what) const {
  if (accumulated_) throw InvalidArgument(fmt::format("{} between accumulate() and apply()", what));
  if (*inside_ != 0) throw InvalidArgument(fmt::format("{} inside {}", what, inside_));
}

/// What was written or moved since the last step is found before the next.
void TrainerState::require_untouched() const {
  model_.require_all_in_place();
  parameters_->require_untouched();
  buffers_->require_untouched();
}

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
  in_backward_ = accumulated_ = false;
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
  if (accumulated_) {
    const std::string text = "accumulate() between accumulate() and apply(): the step is dropped";
    drop(text);  // the others may wait in apply()
    throw InvalidArgument(text);
  }
  require_between_steps("accumulate()");
  exchange_->require_running();
  exchange_->number_next(step());
  std::optional<ActiveParameters> only;
  try {
    require_untouched();
    model_.require_unchanged_list();
    rate_factor_ = options_.schedule(step(), data_.position().epoch);
    require_no_gradients();
    for (const auto& hooks : hooks_) hooks->attach();
    active_ = 0;
    if (active != nullptr) {
      active_ = only.emplace(model_, *active, options_.name).digest();
      active_set_ = only->set();
    }
    look_at_turn();
  } catch (...) {
    exchange_->fail(exception_text());
    throw;
  }
  exchange_->open_shards(mine_.begin, mine_.count());
  board_->mine() = {.in_halves = in_halves ? 1 : 0};
  metrics_.clear();
  request_.reset();
  last_that_asked_ = -1;
  try {
    if (audit_) audit_->open(step(), states_);
    buffers_->open(mine_.begin);
    for (auto s = mine_.begin; s < mine_.end; ++s) run_shard(s, compute);
    if (audit_) repeat_shard(compute);
    only.reset();
    show_first();
    buffers_->publish();
    publish_notes();
    if (audit_) audit_->publish();
    seed_between_steps();
    exchange_->arrive(memory_);
    read_notes();
    require_values();
    if (audit_) audit_->compare();
    verdict_ = update_->judge(scale_.factor);
    if (replicas_) replicas_->judge(step(), scale_.factor, options_.clip, verdict_);
  } catch (...) {
    drop(exception_text());
    throw;
  }
  accumulated_ = true;
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

// ---- what workers tell each other besides gradients ----

namespace {

/// In front of a worker's metrics: this, then the modes of its modules.
struct NotesHead {
  DataRequest request;
  std::uint64_t active = 0;
  std::uint64_t modules = 0;  ///< 0 where it has no shard
  std::size_t bytes() const { return sizeof(NotesHead) + (modules + 7) / 8 * 8; }
};

}  // namespace

void TrainerState::publish_notes() {
  const auto modes = mine_.count() > 0 ? modes_of(module_) : std::vector<std::uint8_t>();
  const NotesHead head{request_.value_or(DataRequest{}), active_, modes.size()};
  const auto area = board_->notes_area();
  std::memcpy(area.data(), &head, sizeof head);
  if (!modes.empty()) std::memcpy(area.data() + sizeof head, modes.data(), modes.size());
  board_->mine().notes = head.bytes() + pack(metrics_, area.subspan(head.bytes()));
}

/// A module that one worker has left in eval() would give that worker's shards other gradients.
void TrainerState::require_same_modes(std::span<const std::vector<std::uint8_t>> modes) const {
  std::optional<std::size_t> first;  // of the workers that have shards
  for (std::size_t r = 0; r < modes.size(); ++r) {
    if (modes[r].empty()) continue;
    if (!first) first = r;
    if (modes[r] == modes[*first]) continue;
    const auto rank_of = [&](std::size_t rank) { return group_.job_rank(static_cast<int>(rank)); };
    const auto& one = modes[*first];
    if (modes[r].size() != one.size()) {
      throw InvalidArgument(fmt::format(
          "step {} of \"{}\": the model is made of {} modules on rank {}, of {} "
          "on rank {}",
          step(), options_.name, one.size(), rank_of(*first), modes[r].size(), rank_of(r)));
    }
    const auto at = std::mismatch(one.begin(), one.end(), modes[r].begin()).first - one.begin();
    const auto k = static_cast<std::size_t>(at);
    throw InvalidArgument(fmt::format(
        "step {} of \"{}\": {} is in {} on rank {}, in {} on rank {}; call train() or eval() alike "
        "on "
        "all workers (trainer.evaluate() leaves modules as they were)",
        step(), options_.name, module_text(module_, k), one[k] != 0 ? "train()" : "eval()",
        rank_of(*first), modes[r][k] != 0 ? "train()" : "eval()", rank_of(r)));
  }
}

/// The metrics of all shards, how they asked for data, and in which modes they ran.
void TrainerState::read_notes() {
  std::vector<ShardMetrics> all;
  std::vector<std::vector<std::uint8_t>> modes;
  request_.reset();
  ran_ = 0;
  in_halves_ = false;
  std::int64_t asked = 0;
  std::uint64_t first_active = 0;
  for (int r = 0; r < board_->size(); ++r) {
    in_halves_ = in_halves_ || board_->of(r).in_halves != 0;
    ran_ += board_->of(r).ran;
    asked += board_->of(r).asked;
    const auto notes = board_->notes_of(r);
    NotesHead head;
    std::memcpy(&head, notes.data(), sizeof head);
    const auto* const theirs = reinterpret_cast<const std::uint8_t*>(notes.data()) + sizeof head;
    modes.emplace_back(theirs, theirs + head.modules);
    if (r == 0) first_active = head.active;
    if (head.active != first_active) {
      throw InvalidArgument(
          fmt::format("step {} of \"{}\": rank {} and rank {} give step() different models to "
                      "train: all workers "
                      "take the same turns",
                      step(), options_.name, group_.job_rank(0), group_.job_rank(r)));
    }
    const auto& request = head.request;
    auto shards = unpack(notes.subspan(head.bytes()));
    all.insert(all.end(), std::make_move_iterator(shards.begin()),
               std::make_move_iterator(shards.end()));
    if (request == DataRequest{}) continue;
    if (!request_) request_ = request;
    if (request != *request_) {
      throw InvalidArgument(
          fmt::format("step {}: rank {} asks for {} of {} samples per shard, a rank before it for "
                      "{} of {}",
                      step(), group_.job_rank(r), request.batch, request.dataset_size,
                      request_->batch, request_->dataset_size));
    }
  }
  require_same_modes(modes);
  if (asked != 0 && asked != options_.shards) {
    throw InvalidArgument(fmt::format(
        "step {}: {} of {} shards asked for data: samples that are not asked for would be lost; "
        "call shard.indices() in every shard, and then shard.nothing() where there is nothing to "
        "compute",
        step(), asked, options_.shards));
  }
  result_ = reduce(all);
}

/// Where parameters are going to be looked at in the step that comes, all workers know what they
/// are before anybody's program goes on. Among collectives.
void TrainerState::expect_values() {
  values_->expect(step());
  if (values_->expects()) group_.barrier(waits("values"));
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
  require_open("apply()");
  accumulated_ = false;
  // Nobody changes what another one, between the halves, may still be looking at.
  if (in_halves_) {
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
  auto result = result_of(outcome.report);
  if (applies) {
    update_->commit(outcome.touched);
    if (replicas_) replicas_->commit();
    exchange_->count_traffic();
    rows_->count();
    parameters_->written();
    if (averages_) averages_->follow();
    states_.commit(
        [&](std::int64_t shard) { return !replicas_ || !replicas_->was_dropped(shard); });
  }
  states_.drop();
  if (request_) data_.advance(*request_, options_.shards);
  result.ends_epoch = request_ && data_.position().taken == 0;
  ++steps_;
  if (request_) note_samples();
  if (active_ != 0 || !turns_.latest().empty()) turns_.note(active_);
  if (audit_) audit_->step_is_over();
  seed_between_steps();
  const auto unbearable = take_note(result);
  if (values_->due(step())) {
    exchange_->run_collectives([&] { expect_values(); });
  } else {
    values_->expect(step());
  }
  if (averages_ && hashes(result.step)) {
    exchange_->run_collectives([&] { group_.barrier(waits("averages")); });
  }
  log(result);
  if (!unbearable.empty()) throw InvalidArgument(unbearable);
  return result;
}

StepResult TrainerState::result_of(const StepReport& report) {
  const auto loss = std::find_if(result_.begin(), result_.end(), [](const Metric& metric) {
    return metric.name == kLossName && metric.kind != MetricKind::gather;
  });
  StepResult result;
  result.step = step();
  result.applied = verdict_.refusal.empty();
  result.dropped_because = verdict_.refusal;
  result.loss = loss != result_.end() ? loss->value : std::numeric_limits<double>::quiet_NaN();
  result.weight = report.weight;
  result.shards = ran_;
  const bool clips = options_.clip.norm > 0 || options_.clip.parameter_norm > 0;
  if (clips) result.gradient_norm = verdict_.norm;
  result.rate_factor = rate_factor_;
  result.loss_scale = scale_.factor;
  result.metrics = std::move(result_);
  result.report = report;
  if (replicas_ && result.applied) result.dropped_locally = replicas_->dropped();
  if (coded_ && result.applied) coded_->fill_report(result.report);
  if (replicas_ && replicas_->are_all()) {
    result.report.bytes = result.applied ? replicas_->averaging_bytes() : 0;
    result.report.collectives = result.report.buckets = result.report.bytes > 0 ? 1 : 0;
  }
  if (result.applied) result.report.bytes += rows_->max_bytes();
  return result;
}

TrafficReport TrainerState::traffic() const {
  auto report = exchange_->traffic();
  if (coded_) report = merged(coded_->traffic(), report);
  report = merged(std::move(report), rows_->traffic());
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
  require_open("gradient()");
  return folded_gradient(parameter_of(name));
}

std::size_t TrainerState::parameter_of(const std::string& name) const {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    if (model_.name(p) == name) return p;
  }
  for (const auto& item : model_.buffers()) {
    if (item.first == name) {
      throw InvalidArgument(fmt::format(
          "\"{}\" is a buffer, not a parameter: with_logical_worker() shows per-replica ones",
          name));
    }
  }
  throw InvalidArgument(
      fmt::format("there is no parameter \"{}\" (the first one is \"{}\")", name, model_.name(0)));
}

/// Undefined if no shard touched it.
torch::Tensor TrainerState::folded_gradient(std::size_t parameter) {
  if (!exchange_->slices().touched(parameter)) return {};
  if (model_.is_per_replica(parameter))
    return replicas_->gradient(static_cast<std::uint32_t>(parameter));
  const auto& tensor = model_.tensor(parameter);
  const auto& entry = exchange_->plan().parameters()[parameter];
  const auto type = scalar_type_of(entry.node_type);
  if (entry.row_sparse()) {
    const auto p = static_cast<std::uint32_t>(parameter);
    OutgoingRows rows(tensor, type, rows_->max_touched(p));
    update_->read_rows(verdict_, p, [&](const RowList& some) { rows.append(some); });
    return rows.tensor(type);
  }
  auto gradient = torch::empty_strided(tensor.sizes(), tensor.strides(), type);
  update_->read_gradient(verdict_, static_cast<std::uint32_t>(parameter),
                         static_cast<std::byte*>(gradient.data_ptr()));
  return gradient;
}

double TrainerState::gradient_norm() {
  require_open("gradient_norm()");
  if (verdict_.norm) return *verdict_.norm;
  double total = 0;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    if (!exchange_->slices().touched(p)) continue;
    if (model_.row_sparse(p)) {
      total += update_->squares_of_rows(verdict_, static_cast<std::uint32_t>(p));
      continue;
    }
    if (!model_.is_per_replica(p)) total += squares_of(folded_gradient(p));
  }
  if (replicas_) total += replicas_->squares();
  return std::sqrt(total);
}

}  // namespace tutti
