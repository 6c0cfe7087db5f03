#include "torch/gradients/gradient_intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tutti/error.h"

namespace tutti {

void HookedParameters::add(const torch::Tensor& parameter, std::string label,
                           const std::weak_ptr<GradientSink>& sink) {
  auto hooks = std::make_unique<ParameterHooks>(parameter, label, all_.size(), sink);
  all_.push_back({parameter, std::move(label), std::move(hooks)});
}

void HookedParameters::attach_new() {
  for (const auto& one : all_) one.hooks->attach();
}

torch::Tensor HookedParameters::take_accumulated(std::size_t parameter) {
  const auto& [tensor, label, hooks] = all_[parameter];
  // torch also calls the slot when the pre-hook left it nothing to accumulate.
  if (!tensor.grad().defined()) return {};
  hooks->attach();
  return std::exchange(tensor.mutable_grad(), torch::Tensor());
}

void HookedParameters::require_own_slots() const {
  for (const auto& one : all_) {
    if (one.hooks->slot_is_ours()) continue;
    throw InvalidArgument(fmt::format(
        "{}: its post-accumulate hook was replaced after DataParallel was made", one.label));
  }
}

void HookedParameters::leave(std::size_t begin, std::size_t end, const std::string& warning) {
  const auto notice = std::make_shared<EndedNotice>();
  notice->warning = warning;
  for (auto p = begin; p < std::min(end, all_.size()); ++p) all_[p].hooks->leave(notice);
}

GradientIntake::GradientIntake(const WrappedModel& model, StepExchange& exchange,
                               const std::vector<GradientSource*>& sources,
                               ZeroCopyGradients* zero_copy, HostCopies* host,
                               DeviceNumbers* numbers)
    : model_(model),
      exchange_(exchange),
      sources_(sources),
      zero_copy_(zero_copy),
      coming_(host == nullptr ? nullptr
                              : std::make_unique<DeviceGradients>(*host, exchange, numbers)) {}

void GradientIntake::note(std::size_t parameter, double times) {
  for (auto* source : sources_) source->wrote(static_cast<std::uint32_t>(parameter), times);
}

void GradientIntake::write(std::size_t parameter, const IncomingGradient& gradient, bool last,
                           double times) {
  auto& leaves = exchange_.leaves();
  if (gradient.is_rows()) return leaves.write(parameter, gradient.rows(), last);
  if (coming_) {
    coming_->add(parameter, gradient.values(), last, gradient.is_alone());
  } else {
    const bool may_stay = zero_copy_ != nullptr && gradient.is_alone();
    if (zero_copy_ != nullptr) zero_copy_->arrived(parameter, gradient.values(), may_stay);
    leaves.write(parameter, gradient.values().data_ptr(), last, may_stay);
  }
  if (last) note(parameter, times);
}

}  // namespace tutti
