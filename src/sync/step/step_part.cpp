#include "sync/step/step_part.h"

namespace tutti {

void StepParts::open(const StepFacts& step) const {
  for (auto* part : parts_) part->open(step);
}

void StepParts::publish() const {
  for (auto* part : parts_) part->publish();
}

void StepParts::judge(StepFacts& step) const {
  for (auto* part : parts_) part->judge(step);
}

void StepParts::apply(const StepFacts& step) const {
  if (!step.verdict.refusal.empty()) return drop();
  for (auto* part : parts_) part->apply(step);
}

void StepParts::finish(StepFacts& step) const {
  if (step.verdict.refusal.empty()) {
    for (auto* part : parts_) part->commit(step);
  }
  for (auto* part : parts_) part->end(step);
}

void StepParts::drop() const noexcept {
  for (auto* part : parts_) part->drop();
}

void StepParts::settle() const {
  for (auto* part : parts_) part->settle();
}

void StepParts::resume() const {
  for (auto* part : parts_) part->resume();
}

TrafficReport StepParts::traffic() const {
  TrafficReport report;
  for (const auto* part : parts_) part->add_traffic(report);
  return report;
}

}  // namespace tutti
