#include "torch/data_parallel/step_parts.h"

#include "torch/model/row_tensors.h"
#include "tutti/tensors.h"

namespace tutti {

void MessageSumsStepPart::apply(const StepFacts&) {
  fold_for_all(coded_, exchange_.nodes(), owned_.of(exchange_.nodes().team().rank));
}

void SourcesStepPart::judge(StepFacts& step) {
  for (auto* source : sources_) {
    source->begin(step.loss_scale);
    if (!step.verdict.refusal.empty()) continue;
    const auto refusal = source->prepare();
    step.verdict.refusal = refusal.text;
    step.verdict.finite = !refusal.is_overflow;
  }
}

void SourcesStepPart::apply(const StepFacts&) {
  for (auto* source : sources_) source->note();
}

void SourcesStepPart::commit(StepFacts& step) {
  for (auto* source : sources_) source->commit(step.report);
}

void RowTensorsStepPart::judge(StepFacts& step) {
  if (!rows_.any() || !step.verdict.refusal.empty()) return;
  rows_.keep(owned_.of(exchange_.nodes().team().rank), {});
  exchange_.protocol().barrier("the sum of its rows in");
}

void RowTensorsStepPart::apply(const StepFacts&) {
  const auto workers = exchange_.nodes().team().size();
  for (const auto p : rows_.parameters()) {
    if (!rows_.touched(p) || !placed_.is_mine(p)) continue;
    const auto& entry = exchange_.plan().parameters()[p];
    std::size_t count = 0;
    for (int r = 0; r < workers; ++r) count += rows_.kept(r, p).rows.size();
    OutgoingRows rows(model_.tensor(p), scalar_type_of(entry.node_type),
                      static_cast<std::int64_t>(count));
    for (int r = 0; r < workers; ++r) rows.append(rows_.kept(r, p));
    views_.set_rows(p, rows.tensor(model_.tensor(p).scalar_type()));
  }
}

void ViewsStepPart::commit(StepFacts& step) {
  auto installed = step.touched;
  for (std::size_t p = 0; p < installed.size(); ++p) {
    if (!placed_.is_mine(p)) installed[p] = 0;
  }
  views_.install(installed);
}

}  // namespace tutti
