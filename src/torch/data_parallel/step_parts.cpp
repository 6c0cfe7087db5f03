#include "torch/data_parallel/step_parts.h"

#include "torch/model/module_modes.h"
#include "torch/model/row_tensors.h"
#include "tutti/tensors.h"

namespace tutti {

void WrappedModelStepPart::publish() {
  model_.require_all_in_place();
  hooked_.require_own_slots();
  model_.require_unchanged_list();
  // By the end of the first backward a program has seeded torch's generator.
  if (exchange_.protocol().numbers().done == 0) {
    const auto [seed, state] = generator_.position();
    exchange_.leaves().first_look().generator(seed, state);
  }
  if (exchange_.model().looks_closely() && model_.module() != nullptr) {
    memory_.modes = modes_of(*model_.module());
  }
  if (host_ == nullptr) return;
  if (exchange_.model().reads_parameters()) host_->fetch_parameters();
  if (exchange_.model().reads_buffers()) host_->fetch_buffers();
}

void CommonBuffersStepPart::commit(StepFacts&) {
  const auto changed = exchange_.model().changed_buffers();
  if (host_ != nullptr) return host_->give_buffers(changed);
  for (std::size_t b = 0; b < changed.size(); ++b) {
    if (changed[b] != 0) buffers_[b].second.unsafeGetTensorImpl()->bump_version();
  }
}

SumsStepPart::SumsStepPart(StepExchange& exchange, CodedGradients* coded)
    : exchange_(exchange), coded_(coded) {
  if (coded_ != nullptr) owned_.emplace(exchange, *coded);
}

void SumsStepPart::apply(const StepFacts&) {
  if (coded_ == nullptr) return exchange_.fold_slices();
  fold_for_all(*coded_, exchange_.nodes(), owned_->of(exchange_.nodes().team().rank));
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
    if (!rows_.touched(p) || !exchange_.is_updated_here(p)) continue;
    const auto& entry = exchange_.plan().parameters()[p];
    std::size_t count = 0;
    for (int r = 0; r < workers; ++r) count += rows_.kept(r, p).rows.size();
    OutgoingRows rows(model_.tensor(p), scalar_type_of(entry.node_type),
                      static_cast<std::int64_t>(count));
    for (int r = 0; r < workers; ++r) rows.append(rows_.kept(r, p));
    gradients_.set_rows(p, rows.tensor(model_.tensor(p).scalar_type()));
  }
}

}  // namespace tutti
