#include "torch/trainer/trainer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/error_kind.h"
#include "base/log_line.h"
#include "comm/group_state.h"
#include "comm/host_copies.h"
#include "job/alone.h"
#include "sync/update/gradient_norms.h"
#include "torch/shards/active_parameters.h"
#include "torch/shards/trainer_settings.h"
#include "torch/trainer/trainer_edit.h"
#include "tutti/error.h"

namespace tutti {

// ---- the first half of a step ----

/// What a parameter holds by hand would be taken for what a backward has left there.
void TrainerState::require_no_gradients() const {
  for (const auto& [name, tensor] : own_.model.parameters()) {
    if (!tensor.grad().defined()) continue;
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of Trainer \"{}\" holds a gradient that no step has given it: "
        "hand gradients in by shard.gradients(), and let this one go (zero_grad())",
        name, own_.options.name));
  }
}

void TrainerState::drop(const std::string& why) noexcept {
  own_.between.set_half(false);
  own_.runner->drop();
  if (own_.pipeline) own_.pipeline->drop();
  if (own_.exchange->protocol().is_open()) own_.exchange->protocol().fail(why);
  own_.runner->join();
  own_.step_parts.drop();
}

std::int64_t TrainerState::epoch() {
  const auto epoch = own_.data.position().epoch;
  if (own_.epochs.asked(own_.steps) && own_.group.rank() == 0) {
    log_warning(fmt::format(
        "epoch() of \"{}\" stands at {}, and was asked for after each of {} steps in which no "
        "shard asked for samples by shard.indices() or a ShardLoader: such steps count to no "
        "epoch, and a loop until the next one does not end with them",
        own_.options.name, epoch, EpochWatch::kPatience));
  }
  return epoch;
}

/// Two steps at once would draw from one generator. The others drop the refused step, and wait for
/// none.
void TrainerState::enter_step(const torch::nn::Module* active) {
  const auto me = fmt::format("Trainer \"{}\"", own_.options.name);
  auto stepping = std::make_unique<Stepping>(own_.group.state()->job(), me);
  try {
    BetweenSteps::require_one_thread("a step of " + me, *stepping);
  } catch (...) {
    if (stepping_) throw;  // it is this Trainer's own step: nothing of it is touched
    own_.exchange->protocol().number_next(step());
    own_.runner->announce(step(), active);
    own_.exchange->protocol().fail(exception_text());
    own_.runner->join();
    throw;
  }
  stepping_ = std::move(stepping);
}

/// All workers call the same one: none is left waiting.
void TrainerState::require_fitting(const Closures& closures) const {
  const bool in_stages = own_.pipeline != nullptr;
  if (in_stages == (closures.whole == nullptr)) return;
  throw InvalidArgument(
      in_stages ? "a Trainer with a pipeline: a step takes two closures, step(inputs, loss)"
                : "step(inputs, loss) is for a Trainer whose options have a pipeline");
}

void TrainerState::compute(const Closures& closures) {
  if (own_.pipeline) {
    own_.pipeline->run(closures.inputs, closures.loss);
  } else {
    own_.runner->run(closures.whole);
  }
}

void TrainerState::accumulate(const Closures& closures, bool in_halves,
                              const torch::nn::Module* active) {
  require_step_together(own_.group.state()->job(), own_.options.name);
  if (own_.between.is_half()) {
    const std::string text = "accumulate() between accumulate() and apply(): the step is dropped";
    drop(text);  // the others may wait in apply()
    stepping_.reset();
    throw InvalidArgument(text);
  }
  enter_step(active);
  try {
    begin_step(closures, in_halves, active);
  } catch (...) {
    stepping_.reset();
    throw;
  }
}

void TrainerState::begin_step(const Closures& closures, bool in_halves,
                              const torch::nn::Module* active) {
  const Together together(own_.group.state()->job());
  own_.between.require("accumulate()");
  own_.exchange->protocol().require_running();
  own_.exchange->protocol().number_next(step());
  std::optional<ActiveParameters> only;
  try {
    require_fitting(closures);
    own_.runner->announce(step(), active);
    own_.trained().require_untouched();
    own_.model.require_unchanged_list();
    facts_ = {.number = step(),
              .loss_scale = own_.scale.factor,
              .rate_factor = own_.options.schedule(step(), own_.data.position().epoch),
              .averaging = own_.replicas ? own_.replicas->decision_of(step()) : 0,
              .in_halves = in_halves};
    own_.in_halves = in_halves;
    require_no_gradients();
    own_.runner->open(step(), own_.scale.factor);
    if (active != nullptr) {
      facts_.active = only.emplace(own_.model, *active, own_.options.name).digest();
      active_set_ = only->set();
      own_.runner->narrow(active_set_);
    }
    look_at_turn();
  } catch (...) {
    own_.exchange->protocol().fail(exception_text());
    own_.runner->join();
    throw;
  }
  own_.exchange->open_shards(own_.mine.begin, own_.mine.count());
  try {
    own_.step_parts.open(facts_);
    compute(closures);
    only.reset();
    own_.step_parts.publish();
    own_.board->send();
    own_.exchange->arrive(own_.memory);
    own_.step_parts.judge(facts_);
  } catch (...) {
    drop(exception_text());
    throw;
  }
  own_.between.set_half(true);
}

/// A checkpoint holds steps, and the program chooses turns: one that was written inside a round
/// may be followed by the wrong one.
void TrainerState::look_at_turn() {
  if (!std::exchange(resumes_, false) || own_.group.rank() != 0) return;
  const auto next = own_.turns.next();
  if (!next || *next == facts_.active) return;
  const auto first = std::ranges::find(active_set_, 1) - active_set_.begin();
  log_warning(fmt::format(
      "step {} of \"{}\", the first one after load(), is about {}; in the rounds of {} turns "
      "before the checkpoint another turn comes here: save after the last turn of a round, or "
      "choose the turn by steps()",
      step(), own_.options.name,
      facts_.active == 0
          ? std::string("all models")
          : fmt::format("the model of \"{}\"", own_.model.name(static_cast<std::size_t>(first))),
      own_.turns.round()));
}

// ---- checks of values ----

/// Where parameters are going to be looked at in the step that comes, all workers know what they
/// are before anybody's program goes on. Among collectives.
void TrainerState::expect_values() {
  own_.values->expect(step());
  if (!own_.values->expects()) return;
  // All workers come to it: nobody's program goes on before.
  own_.checkpoints->require_equal_kept(fmt::format("before step {}", step()));
}

StepResult TrainerState::apply() {
  const Together together(own_.group.state()->job());
  own_.between.require_half("apply()");
  own_.between.set_half(false);
  const auto stepping = std::move(stepping_);
  // Nobody changes what another one, between the halves, may still be looking at.
  if (own_.notes->in_halves()) {
    try {
      own_.model.require_all_parameters_in_place();
      own_.parameters->require_untouched();
      own_.exchange->protocol().barrier("apply() in");
    } catch (...) {
      drop(exception_text());
      throw;
    }
  }
  auto outcome = own_.exchange->complete([&] {
    own_.step_parts.apply(facts_);
    own_.exchange->model().note_buffers(own_.memory);
  });
  facts_.touched = std::move(outcome.touched);
  facts_.report = std::move(outcome.report);
  if (own_.pipeline) own_.pipeline->add_to(facts_.report);
  own_.step_parts.finish(facts_);
  auto result = result_of();
  if (own_.values->due(step())) {
    own_.exchange->protocol().run_collectives([&] { expect_values(); });
  } else {
    own_.values->expect(step());
  }
  if (own_.checkpoints->hashes(result.step)) {
    own_.step_parts.settle();
    bring();
  }
  own_.checkpoints->log(result);
  if (!facts_.diverged.empty()) throw Diverged(facts_.diverged);
  return result;
}

StepResult TrainerState::result_of() {
  auto metrics = own_.notes->take_metrics();
  const auto loss = std::find_if(metrics.begin(), metrics.end(), [](const Metric& metric) {
    return metric.name == kLossName && metric.kind != MetricKind::gather;
  });
  StepResult result;
  result.step = facts_.number;
  result.applied = facts_.verdict.refusal.empty();
  result.dropped_because = facts_.verdict.refusal;
  result.loss = loss != metrics.end() ? loss->value : std::numeric_limits<double>::quiet_NaN();
  result.weight = facts_.report.weight;
  result.shards = own_.notes->ran();
  if (needs_norms(own_.options.clip)) result.gradient_norm = facts_.verdict.norm;
  result.rate_factor = facts_.rate_factor;
  result.loss_scale = facts_.loss_scale;
  result.metrics = std::move(metrics);
  result.report = facts_.report;
  result.dropped_locally = facts_.dropped_locally;
  result.ends_epoch = facts_.ends_epoch;
  return result;
}

// ---- between the halves ----

torch::Tensor TrainerState::folded_gradient(const std::string& name) {
  own_.between.require_half("gradient()");
  const auto p = own_.trained().parameter_of(name);
  if (own_.model.is_per_replica(p)) own_.require_all_in_halves();
  return own_.folded->of(p, facts_.verdict);
}

double TrainerState::gradient_norm() {
  own_.between.require_half("gradient_norm()");
  own_.require_all_in_halves();
  if (own_.classifiers && !needs_norms(own_.options.clip)) {
    throw Unsupported(
        "gradient_norm() with layers that are split over workers is known where options.clip has a "
        "norm, which may be one that no gradient exceeds");
  }
  return own_.folded->norm(facts_.verdict);
}

// ---- between steps ----

void TrainerState::edit(const std::function<void()>& change) {
  own_.between.require_together("edit()");
  const auto me = fmt::format("edit() of Trainer \"{}\"", own_.options.name);
  const Stepping stepping(own_.group.state()->job(), me);
  std::exception_ptr error;
  own_.exchange->protocol().run_collectives([&] {
    error = edit_by_hand(own_.trained(), own_.between, change,
                         [&] { BetweenSteps::require_one_thread(me, stepping); });
    expect_values();
  });
  if (error) std::rethrow_exception(error);
}

void TrainerState::keep(const std::string& name, KeptValues::Variable variable) {
  own_.between.require_together(fmt::format("keep(\"{}\")", name));
  own_.between.require("keep()");
  own_.checkpoints->keep(name, variable);
}

void TrainerState::save(const std::string& directory, const SaveOptions& options) {
  own_.between.require_together("save()");
  std::exception_ptr error;
  own_.exchange->protocol().run_collectives([&] {
    error = own_.checkpoints->save(directory, options, own_.steps,
                                   [&] { own_.trained().require_untouched(); });
  });
  if (error) std::rethrow_exception(error);
}

std::optional<std::int64_t> TrainerState::load(const std::string& directory,
                                               const LoadOptions& options) {
  own_.between.require_together("load()");
  const auto me = fmt::format("load() of Trainer \"{}\"", own_.options.name);
  const Stepping stepping(own_.group.state()->job(), me);
  std::optional<std::int64_t> step;
  own_.exchange->protocol().run_collectives([&] {
    if (own_.replicas) own_.replicas->land();
    const auto check = [&] {
      BetweenSteps::require_one_thread(me, stepping);
      own_.model.require_all_in_place();
    };
    // Rank 0 has filled the memory of its host.
    const auto spread = [&] {
      copy_to_hosts(own_.group, own_.shared->memory().data(), own_.shared->bytes());
      if (own_.coded) own_.coded->spread_kept();
      if (own_.replicas) own_.replicas->bring_from_first_rank();
    };
    if (!own_.checkpoints->load(directory, options, check, spread)) return;
    own_.epochs.moved(own_.steps);
    resumes_ = true;
    own_.step_parts.resume();
    expect_values();
    step = own_.steps;
  });
  return step;
}

/// What is to be hashed comes from other hosts, where only they have it.
void TrainerState::bring() {
  auto& state = own_.checkpoints->state();
  if (state.is_on_hosts()) own_.exchange->protocol().run_collectives([&] { state.bring(); });
}

std::string TrainerState::state_sha256() {
  bring();
  return own_.checkpoints->sha256(own_.model.parameters().size());
}

}  // namespace tutti
