#include "torch/trainer/trainer_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/exception_text.h"
#include "base/log_line.h"
#include "kernels/norm.h"
#include "torch/model/row_tensors.h"
#include "torch/trainer/active_parameters.h"
#include "torch/trainer/trainer_settings.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

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
  if (own_.exchange->is_open()) own_.exchange->fail(why);
  own_.step_parts.drop();
  own_.seed_between_steps();
}

std::int64_t TrainerState::epoch() {
  const auto epoch = own_.data.position().epoch;
  if (epochs_.asked(own_.steps) && own_.group.rank() == 0) {
    log_warning(fmt::format(
        "epoch() of \"{}\" stands at {}, and was asked for after each of {} steps in which no "
        "shard asked for samples by shard.indices() or a ShardLoader: such steps count to no "
        "epoch, and a loop until the next one does not end with them",
        own_.options.name, epoch, EpochWatch::kPatience));
  }
  return epoch;
}

void TrainerState::accumulate(const Trainer::Compute& compute, bool in_halves,
                              const torch::nn::Module* active) {
  if (own_.between.is_half()) {
    const std::string text = "accumulate() between accumulate() and apply(): the step is dropped";
    drop(text);  // the others may wait in apply()
    throw InvalidArgument(text);
  }
  own_.between.require("accumulate()");
  own_.exchange->require_running();
  own_.exchange->number_next(step());
  std::optional<ActiveParameters> only;
  try {
    own_.trained().require_untouched();
    own_.model.require_unchanged_list();
    facts_ = {.number = step(),
              .loss_scale = own_.scale.factor,
              .rate_factor = own_.options.schedule(step(), own_.data.position().epoch),
              .in_halves = in_halves};
    require_no_gradients();
    own_.runner->open(step(), own_.scale.factor);
    if (active != nullptr) {
      facts_.active = only.emplace(own_.model, *active, own_.options.name).digest();
      active_set_ = only->set();
      own_.runner->narrow(active_set_);
    }
    look_at_turn();
  } catch (...) {
    own_.exchange->fail(exception_text());
    throw;
  }
  own_.exchange->open_shards(own_.mine.begin, own_.mine.count());
  try {
    own_.step_parts.open(facts_);
    own_.runner->run(compute);
    only.reset();
    own_.step_parts.publish();
    own_.seed_between_steps();
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
  own_.between.require_half("apply()");
  own_.between.set_half(false);
  // Nobody changes what another one, between the halves, may still be looking at.
  if (own_.notes->in_halves()) {
    try {
      own_.exchange->barrier("apply() in");
    } catch (...) {
      drop(exception_text());
      throw;
    }
  }
  auto outcome = own_.exchange->complete([&] {
    own_.step_parts.apply(facts_);
    own_.exchange->note_buffers(own_.memory);
  });
  facts_.touched = std::move(outcome.touched);
  facts_.report = std::move(outcome.report);
  own_.step_parts.finish(facts_);
  auto result = result_of();
  const auto& request = own_.notes->request();
  if (request) own_.data.advance(*request, own_.options.shards);
  result.ends_epoch = request && own_.data.position().taken == 0;
  ++own_.steps;
  if (request) epochs_.moved(own_.steps);
  if (facts_.active != 0 || !own_.turns.latest().empty()) own_.turns.note(facts_.active);
  own_.seed_between_steps();
  const auto unbearable = take_note(result);
  if (own_.values->due(step())) {
    own_.exchange->run_collectives([&] { expect_values(); });
  } else {
    own_.values->expect(step());
  }
  if (own_.averages && own_.checkpoints->hashes(result.step)) {
    own_.exchange->run_collectives([&] { own_.group.barrier(own_.between.waits("averages")); });
  }
  own_.checkpoints->log(result);
  if (!unbearable.empty()) throw Diverged(unbearable);
  return result;
}

StepResult TrainerState::result_of() {
  auto metrics = own_.notes->take_metrics();
  const auto loss = std::find_if(metrics.begin(), metrics.end(), [](const Metric& metric) {
    return metric.name == kLossName && metric.kind != MetricKind::gather;
  });
  StepResult result;
  result.step = step();
  result.applied = facts_.verdict.refusal.empty();
  result.dropped_because = facts_.verdict.refusal;
  result.loss = loss != metrics.end() ? loss->value : std::numeric_limits<double>::quiet_NaN();
  result.weight = facts_.report.weight;
  result.shards = own_.notes->ran();
  const bool clips = own_.options.clip.norm > 0 || own_.options.clip.parameter_norm > 0;
  if (clips) result.gradient_norm = facts_.verdict.norm;
  result.rate_factor = facts_.rate_factor;
  result.loss_scale = facts_.loss_scale;
  result.metrics = std::move(metrics);
  result.report = facts_.report;
  if (own_.replicas && result.applied) result.dropped_locally = own_.replicas->dropped();
  return result;
}

/// What the step means for those to come; what is to be said after too many that were dropped.
std::string TrainerState::take_note(const StepResult& result) {
  if (result.applied) {
    own_.dropped_in_a_row = 0;
    bool shrank = false;
    if (result.dropped_locally.empty()) {
      grow(own_.scale_rule, own_.scale);
    } else {
      shrank = shrink(own_.scale_rule, own_.scale);
      if (own_.group.rank() == 0) {
        log_warning(
            fmt::format("step {} was dropped by logical workers {}: their gradients are not finite",
                        result.step, fmt::join(result.dropped_locally, ", ")));
      }
    }
    return own_.replicas ? own_.replicas->note_drops(shrank, own_.options.max_consecutive_drops)
                         : "";
  }
  if (own_.group.rank() == 0) {
    log_warning(
        fmt::format("step {} was dropped by all workers: {}", result.step, result.dropped_because));
  }
  if (!facts_.verdict.finite && shrink(own_.scale_rule, own_.scale)) return "";
  if (++own_.dropped_in_a_row < own_.options.max_consecutive_drops) return "";
  return fmt::format("{} steps in succession were dropped, the last one (step {}) because {}",
                     own_.dropped_in_a_row, result.step, result.dropped_because);
}

// ---- between the halves ----

torch::Tensor TrainerState::folded_gradient(const std::string& name) {
  own_.between.require_half("gradient()");
  return folded_gradient(own_.trained().parameter_of(name));
}

/// Undefined if no shard touched it.
torch::Tensor TrainerState::folded_gradient(std::size_t parameter) {
  if (!own_.exchange->nodes().touched(parameter)) return {};
  if (own_.model.is_per_replica(parameter))
    return own_.replicas->gradient(static_cast<std::uint32_t>(parameter));
  const auto& tensor = own_.model.tensor(parameter);
  const auto& entry = own_.exchange->plan().parameters()[parameter];
  const auto type = scalar_type_of(entry.node_type);
  if (entry.row_sparse()) {
    const auto p = static_cast<std::uint32_t>(parameter);
    OutgoingRows rows(tensor, type, own_.rows->max_touched(p));
    own_.rows->read_rows(p, [&](const RowList& some) { rows.append(some); });
    return rows.tensor(type);
  }
  auto gradient = torch::empty_strided(tensor.sizes(), tensor.strides(), type);
  own_.update->read_gradient(facts_.verdict, static_cast<std::uint32_t>(parameter),
                             static_cast<std::byte*>(gradient.data_ptr()));
  return gradient;
}

double TrainerState::gradient_norm() {
  own_.between.require_half("gradient_norm()");
  if (facts_.verdict.norm) return *facts_.verdict.norm;
  double total = 0;
  for (std::size_t p = 0; p < own_.model.parameters().size(); ++p) {
    if (!own_.exchange->nodes().touched(p)) continue;
    if (own_.model.row_sparse(p)) {
      total += own_.rows->squares_of(static_cast<std::uint32_t>(p));
      continue;
    }
    if (!own_.model.is_per_replica(p)) total += squares_of(folded_gradient(p));
  }
  if (own_.replicas) total += own_.replicas->squares();
  return std::sqrt(total);
}

}  // namespace tutti
