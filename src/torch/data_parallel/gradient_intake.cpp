#include "torch/data_parallel/gradient_intake.h"

#include <fmt/format.h>

#include <cstdint>

#include "torch/model/incoming_gradient.h"
#include "torch/model/row_tensors.h"
#include "tutti/error.h"

namespace tutti {

void GradientIntake::attach(const std::weak_ptr<GradientSink>& sink) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    hooks_.push_back(std::make_unique<ParameterHooks>(model_.tensor(p), model_.label(p), p, sink));
  }
}

void GradientIntake::attach_new() {
  for (const auto& hooks : hooks_) hooks->attach();
}

void GradientIntake::take(std::size_t parameter, const torch::Tensor& value, bool last) {
  model_.require_in_place(parameter);
  views_.release_kept(parameter);  // a closure of a scope may have kept it
  views_.require_cleared(parameter, exchange_.protocol().last_number());
  if (views_.holds_set_by_hand(parameter)) {
    write(parameter, views_.take_set_by_hand(parameter), false);
  }
  model_.tensor(parameter).mutable_grad().reset();
  write(parameter, value, last);
}

void GradientIntake::write(std::size_t parameter, const torch::Tensor& value, bool last) {
  if (model_.row_sparse(parameter)) {
    const IncomingRows rows(value, model_.tensor(parameter), model_.label(parameter));
    exchange_.leaves().write(parameter, rows.entries(), last);
    return;
  }
  const auto laid_out = laid_out_as(views_.view(parameter), value);
  exchange_.leaves().write(parameter, laid_out.data_ptr(), last);
  if (!last) return;
  for (auto* source : sources_) source->wrote(static_cast<std::uint32_t>(parameter), 1);
}

void GradientIntake::take_set_by_hand(bool last) {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    if (!views_.holds_set_by_hand(p)) continue;
    views_.release_kept(p);
    write(p, views_.take_set_by_hand(p), last);
  }
}

torch::Tensor GradientIntake::take_accumulated(std::size_t parameter) {
  const auto& tensor = model_.tensor(parameter);
  // torch also calls the slot when the pre-hook left it nothing to accumulate.
  if (!tensor.grad().defined()) return {};
  model_.require_in_place(parameter);
  if (views_.is_view(parameter, tensor.grad())) {
    throw InvalidArgument(
        fmt::format("{} was unfrozen while it held a reduced gradient; call zero_grad() when "
                    "freezing it",
                    model_.label(parameter)));
  }
  auto value = tensor.grad();
  tensor.mutable_grad().reset();
  hooks_[parameter]->attach();
  return value;
}

bool GradientIntake::holds_set_by_hand() const {
  bool any = false;
  for (std::size_t p = 0; p < views_.size(); ++p) {
    views_.require_cleared(p, exchange_.protocol().last_number());
    any = any || views_.holds_set_by_hand(p);
  }
  return any;
}

void GradientIntake::require_own_slots() const {
  for (std::size_t p = 0; p < hooks_.size(); ++p) {
    if (hooks_[p]->slot_is_ours()) continue;
    throw InvalidArgument(fmt::format(
        "{}: its post-accumulate hook was replaced after DataParallel was made", model_.label(p)));
  }
}

void GradientIntake::leave(const std::string& warning) {
  const auto notice = std::make_shared<EndedNotice>();
  notice->warning = warning;
  for (const auto& hooks : hooks_) hooks->leave(notice);
}

}  // namespace tutti
