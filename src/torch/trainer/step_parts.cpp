#include "torch/trainer/step_parts.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "sync/step/traffic_count.h"
#include "tutti/error.h"

namespace tutti {

void ValuesStep::judge(StepFacts&) {
  if (!values_.expects()) return;
  if (const auto p = values_.first_changed()) {
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of \"{}\" was changed between steps, or by a shard, in a way that torch "
        "does not count (data(), a pointer); all workers share it, so each one's change would "
        "count: change values inside trainer.edit()",
        model_.name(*p), trainer_));
  }
  exchange_.barrier("the check of parameters in");
}

void ReplicasStep::end(StepFacts& step) {
  if (!replicas_.are_all()) return;
  auto& report = step.report;  // no gradient was exchanged
  report.max_sent_bytes = step.verdict.refusal.empty() ? replicas_.averaging_bytes() : 0;
  report.collectives = report.buckets = report.max_sent_bytes > 0 ? 1 : 0;
}

void ReplicasStep::add_traffic(TrafficReport& report) const {
  if (!replicas_.are_all()) return;
  report.collectives = 0;  // no gradient was exchanged
  const auto* const averaging = replicas_.averaging();
  if (averaging == nullptr) return;
  report.collectives = averaging->traffic().collectives;
  report = merged(std::move(report), averaging->traffic());
}

void BuffersStep::apply(const StepFacts&) {
  static const std::vector<std::int64_t> none;
  buffers_.finish(board_, replicas_ != nullptr ? replicas_->dropped() : none,
                  replicas_ != nullptr && replicas_->is_due());
}

void StatesStep::commit(StepFacts&) {
  states_.commit(
      [&](std::int64_t shard) { return replicas_ == nullptr || !replicas_->was_dropped(shard); });
  states_.drop();
}

}  // namespace tutti
