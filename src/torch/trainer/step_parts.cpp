#include "torch/trainer/step_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/log_line.h"
#include "sync/step/traffic_count.h"

namespace tutti {

void DropsStepPart::end(StepFacts& step) {
  if (step.verdict.refusal.empty()) {
    note_applied(step);
  } else {
    note_refused(step);
  }
}

void DropsStepPart::note_applied(StepFacts& step) {
  in_a_row_ = 0;
  if (step.dropped_locally.empty()) return grow(rule_, scale_);
  step.shrank = shrink(rule_, scale_);
  if (!logs_) return;
  log_warning(
      fmt::format("step {} was dropped by logical workers {}: their gradients are not finite",
                  step.number, fmt::join(step.dropped_locally, ", ")));
}

void DropsStepPart::note_refused(StepFacts& step) {
  const auto& why = step.verdict.refusal;
  if (logs_) log_warning(fmt::format("step {} was dropped by all workers: {}", step.number, why));
  step.shrank = !step.verdict.finite && shrink(rule_, scale_);
  if (step.shrank || ++in_a_row_ < most_) return;
  step.diverged =
      fmt::format("{} steps in succession were dropped, the last one (step {}) because {}",
                  in_a_row_, step.number, why);
}

void ProgressStepPart::end(StepFacts& step) {
  auto& [data, epochs, turns, steps] = progress_;
  const auto& request = notes_.request();
  if (request) data.advance(*request, shards_);
  step.ends_epoch = request && data.position().taken == 0;
  ++steps;
  if (request) epochs.moved(steps);
  if (step.active != 0 || !turns.latest().empty()) turns.note(step.active);
}

void AveragesStepPart::settle() {
  exchange_.protocol().run_collectives(
      [&] { exchange_.group().barrier(between_.waits("averages")); });
}

void StatesStepPart::commit(StepFacts&) {
  states_.commit([&](std::int64_t shard) {
    return replicas_ == nullptr || replicas_->took_part(replicas_->logical_worker_of(shard));
  });
  states_.drop();
}

}  // namespace tutti
