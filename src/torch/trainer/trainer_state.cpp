#include "torch/trainer/trainer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/error_kind.h"
#include "base/log_line.h"
#include "comm/group_state.h"
#include "job/alone.h"
#include "run/numbers/metric_exchange.h"
#include "sync/update/gradient_norms.h"
#include "torch/shards/active_parameters.h"
#include "torch/shards/trainer_settings.h"
#include "tutti/error.h"

namespace tutti {

TrainerObjects& TrainerState::own() {
  if (run_) return *run_;
  throw InvalidArgument(
      fmt::format("Trainer \"{}\" has ended: its run could not be made anew", world_.options.name));
}

// ---- the first half of a step ----

/// What a parameter holds by hand would be taken for what a backward has left there.
void TrainerState::require_no_gradients() const {
  for (const auto& [name, tensor] : own().model.parameters()) {
    if (!tensor.grad().defined()) continue;
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of Trainer \"{}\" holds a gradient that no step has given it: "
        "hand gradients in by shard.gradients(), and let this one go (zero_grad())",
        name, own().options.name));
  }
}

void TrainerState::drop(const std::string& why) noexcept {
  own().between.set_half(false);
  own().runner->drop();
  if (own().pipeline) own().pipeline->drop();
  if (own().exchange->protocol().is_open()) own().exchange->protocol().fail(why);
  own().runner->join();
  own().step_parts.drop();
}

std::int64_t TrainerState::epoch() {
  const auto epoch = own().data.position().epoch;
  if (own().epochs.asked(own().steps) && own().group.rank() == 0) {
    log_warning(fmt::format(
        "epoch() of \"{}\" stands at {}, and was asked for after each of {} steps in which no "
        "shard asked for samples by shard.indices() or a ShardLoader: such steps count to no "
        "epoch, and a loop until the next one does not end with them",
        own().options.name, epoch, EpochWatch::kPatience));
  }
  return epoch;
}

/// Two steps at once would draw from one generator. The others drop the refused step, and wait for
/// none.
void TrainerState::enter_step(const torch::nn::Module* active) {
  const auto me = fmt::format("Trainer \"{}\"", own().options.name);
  auto stepping = std::make_unique<Stepping>(own().group.state()->job(), me);
  try {
    BetweenSteps::require_one_thread("a step of " + me, *stepping);
  } catch (...) {
    if (stepping_) throw;  // it is this Trainer's own step: nothing of it is touched
    own().exchange->protocol().number_next(step());
    own().runner->announce(step(), active);
    own().exchange->protocol().fail(exception_text());
    own().runner->join();
    throw;
  }
  stepping_ = std::move(stepping);
}

/// All workers call the same one: none is left waiting.
void TrainerState::require_fitting(const Closures& closures) const {
  const bool in_stages = own().pipeline != nullptr;
  if (in_stages == (closures.whole == nullptr)) return;
  throw InvalidArgument(
      in_stages ? "a Trainer with a pipeline: a step takes two closures, step(inputs, loss)"
                : "step(inputs, loss) is for a Trainer whose options have a pipeline");
}

void TrainerState::compute(const Closures& closures) {
  if (own().pipeline) {
    own().pipeline->run(closures.inputs, closures.loss);
  } else {
    own().runner->run(closures.whole);
  }
}

void TrainerState::accumulate(const Closures& closures, bool in_halves,
                              const torch::nn::Module* active) {
  require_step_together(own().group.state()->job(), own().options.name);
  if (own().between.is_half()) {
    const std::string text = "accumulate() between accumulate() and apply(): the step is dropped";
    drop(text);  // the others may wait in apply()
    stepping_.reset();
    throw InvalidArgument(text);
  }
  end_if_asked();
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
  const Together together(own().group.state()->job());
  own().between.require("accumulate()");
  own().exchange->protocol().require_running();
  own().exchange->protocol().number_next(step());
  std::optional<ActiveParameters> only;
  try {
    require_fitting(closures);
    own().runner->announce(step(), active);
    own().trained().require_untouched();
    own().model.require_unchanged_list();
    facts_ = {.number = step(),
              .loss_scale = own().scale.factor,
              .rate_factor = own().options.schedule(step(), own().data.position().epoch),
              .averaging = own().replicas ? own().replicas->decision_of(step()) : 0,
              .in_halves = in_halves};
    own().in_halves = in_halves;
    require_no_gradients();
    own().runner->open(step(), own().scale.factor);
    if (active != nullptr) {
      facts_.active = only.emplace(own().model, *active, own().options.name).digest();
      active_set_ = only->set();
      own().runner->narrow(active_set_);
    }
    look_at_turn();
  } catch (...) {
    own().exchange->protocol().fail(exception_text());
    own().runner->join();
    throw;
  }
  own().exchange->open_shards(own().mine.begin, own().mine.count());
  try {
    own().step_parts.open(facts_);
    compute(closures);
    only.reset();
    own().step_parts.publish();
    own().board->send();
    own().exchange->arrive(own().memory);
    own().step_parts.judge(facts_);
  } catch (...) {
    drop(exception_text());
    throw;
  }
  own().between.set_half(true);
}

/// A checkpoint holds steps, and the program chooses turns: one that was written inside a round
/// may be followed by the wrong one.
void TrainerState::look_at_turn() {
  if (!std::exchange(resumes_, false) || own().group.rank() != 0) return;
  const auto next = own().turns.next();
  if (!next || *next == facts_.active) return;
  const auto first = std::ranges::find(active_set_, 1) - active_set_.begin();
  log_warning(fmt::format(
      "step {} of \"{}\", the first one after load(), is about {}; in the rounds of {} turns "
      "before the checkpoint another turn comes here: save after the last turn of a round, or "
      "choose the turn by steps()",
      step(), own().options.name,
      facts_.active == 0
          ? std::string("all models")
          : fmt::format("the model of \"{}\"", own().model.name(static_cast<std::size_t>(first))),
      own().turns.round()));
}

// ---- checks of values ----

/// Where parameters are going to be looked at in the step that comes, all workers know what they
/// are before anybody's program goes on. Among collectives.
void TrainerState::expect_values() {
  own().values->expect(step());
  if (!own().values->expects()) return;
  // All workers come to it: nobody's program goes on before.
  own().checkpoints->require_equal_kept(fmt::format("before step {}", step()));
}

StepResult TrainerState::apply() {
  const Together together(own().group.state()->job());
  own().between.require_half("apply()");
  own().between.set_half(false);
  const auto stepping = std::move(stepping_);
  // Nobody changes what another one, between the halves, may still be looking at.
  if (own().notes->in_halves()) {
    try {
      own().model.require_all_parameters_in_place();
      own().parameters->require_untouched();
      own().exchange->protocol().barrier("apply() in");
    } catch (...) {
      drop(exception_text());
      throw;
    }
  }
  auto outcome = own().exchange->complete([&] {
    own().step_parts.apply(facts_);
    own().exchange->model().note_buffers(own().memory);
  });
  facts_.touched = std::move(outcome.touched);
  facts_.report = std::move(outcome.report);
  if (own().pipeline) own().pipeline->add_to(facts_.report);
  own().step_parts.finish(facts_);
  auto result = result_of();
  if (own().values->due(step())) {
    own().exchange->protocol().run_collectives([&] { expect_values(); });
  } else {
    own().values->expect(step());
  }
  if (own().checkpoints->hashes(result.step)) {
    own().step_parts.settle();
    bring();
  }
  own().checkpoints->log(result);
  if (!facts_.diverged.empty()) throw Diverged(facts_.diverged);
  return result;
}

StepResult TrainerState::result_of() {
  auto metrics = own().notes->take_metrics();
  const auto loss = std::find_if(metrics.begin(), metrics.end(), [](const Metric& metric) {
    return metric.name == kLossName && metric.kind != MetricKind::gather;
  });
  StepResult result;
  result.step = facts_.number;
  result.applied = facts_.verdict.refusal.empty();
  result.dropped_because = facts_.verdict.refusal;
  result.loss = loss != metrics.end() ? loss->value : std::numeric_limits<double>::quiet_NaN();
  result.weight = facts_.report.weight;
  result.shards = own().notes->ran();
  if (needs_norms(own().options.clip)) result.gradient_norm = facts_.verdict.norm;
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
  own().between.require_half("gradient()");
  const auto p = own().trained().parameter_of(name);
  if (own().model.is_per_replica(p)) own().require_all_in_halves();
  return own().folded->of(p, facts_.verdict);
}

double TrainerState::gradient_norm() {
  own().between.require_half("gradient_norm()");
  own().require_all_in_halves();
  if (own().classifiers && !needs_norms(own().options.clip)) {
    throw Unsupported(
        "gradient_norm() with layers that are split over workers is known where options.clip has a "
        "norm, which may be one that no gradient exceeds");
  }
  return own().folded->norm(facts_.verdict);
}

}  // namespace tutti
