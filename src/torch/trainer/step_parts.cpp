#include "torch/trainer/step_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/log_line.h"
#include "sync/step/traffic_count.h"
#include "tutti/error.h"

namespace tutti {

void ValuesStepPart::judge(StepFacts&) {
  if (!values_.expects()) return;
  if (const auto p = values_.first_changed()) {
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of \"{}\" was changed between steps, or by a shard, in a way that torch "
        "does not count (data(), a pointer); all workers share it, so each one's change would "
        "count: change values inside trainer.edit()",
        model_.name(*p), trainer_));
  }
  exchange_.protocol().barrier("the check of parameters in");
}

void KeepersStepPart::judge(StepFacts&) {
  const auto clash = keepers_.clash();
  if (!clash) return;
  const auto parameters = model_.parameters().size();
  if (clash->tensor < parameters) {
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of Trainer \"{}\" is read first by stage {} in some shards and by stage "
        "{} in others, so that no stage has its gradient of all shards: name it in "
        "Pipeline::shared, and the first stage hands it in",
        model_.name(clash->tensor), trainer_, clash->one, clash->other));
  }
  throw InvalidArgument(fmt::format(
      "buffer \"{}\" of Trainer \"{}\" is changed by stage {} in some shards and by stage {} in "
      "others: whose value counts is not known. Let one stage change it, or cut the layers so that "
      "one stage does",
      model_.buffers()[clash->tensor - parameters].first, trainer_, clash->one, clash->other));
}

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

void ReplicasStepPart::commit(StepFacts& step) {
  replicas_.commit();
  step.dropped_locally = replicas_.dropped();
}

void ReplicasStepPart::end(StepFacts& step) {
  const bool is_applied = step.verdict.refusal.empty();
  if (is_applied) step.diverged = replicas_.note_drops(step.shrank, most_);
  if (!replicas_.are_all()) return;
  auto& report = step.report;  // no gradient was exchanged
  report.max_sent_bytes = is_applied ? replicas_.averaging_bytes() : 0;
  report.collectives = report.buckets = report.max_sent_bytes > 0 ? 1 : 0;
}

void ReplicasStepPart::add_traffic(TrafficReport& report) const {
  if (!replicas_.are_all()) return;
  report.collectives = 0;  // no gradient was exchanged
  const auto* const averaging = replicas_.averaging();
  if (averaging == nullptr) return;
  const auto traffic = averaging->traffic();
  report.collectives = traffic.collectives;
  report = merged(std::move(report), traffic);
}

void BuffersStepPart::apply(const StepFacts&) {
  static const std::vector<std::int64_t> none;
  buffers_.finish(board_, replicas_ != nullptr ? replicas_->dropped() : none,
                  replicas_ != nullptr && replicas_->is_due());
}

void AveragesStepPart::settle() {
  exchange_.protocol().run_collectives(
      [&] { exchange_.group().barrier(between_.waits("averages")); });
}

void StatesStepPart::commit(StepFacts&) {
  states_.commit(
      [&](std::int64_t shard) { return replicas_ == nullptr || !replicas_->was_dropped(shard); });
  states_.drop();
}

}  // namespace tutti
