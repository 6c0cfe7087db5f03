#include "torch/gradient_views.h"

#include <fmt/format.h>

#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {

GradientViews::GradientViews(const WrappedModel& model, const StepExchange& exchange)
    : model_(model) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& parameter = model_.tensor(p);
    views_.push_back(torch::from_blob(
        exchange.result(p), parameter.sizes(), parameter.strides(),
        [arena = exchange.arena()](void*) {}, parameter.options().requires_grad(false)));
    versions_.push_back(0);
  }
}

void GradientViews::install(const std::vector<std::uint8_t>& touched) {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    auto& grad = model_.tensor(p).mutable_grad();
    if (touched[p]) {
      views_[p].unsafeGetTensorImpl()->bump_version();
      versions_[p] = static_cast<std::int64_t>(views_[p]._version());
      grad = views_[p];
    } else {
      grad.reset();
    }
  }
}

void GradientViews::drop() noexcept {
  for (std::size_t p = 0; p < views_.size(); ++p) model_.tensor(p).mutable_grad().reset();
}

/// zero_grad(false) puts a detached alias in place of what it zeroes, so memory decides.
bool GradientViews::is_view(std::size_t parameter, const torch::Tensor& grad) const {
  const auto& view = views_[parameter];
  return grad.is_same(view) || (grad.layout() == torch::kStrided && grad.numel() > 0 &&
                                grad.data_ptr() == view.data_ptr() && grad.numel() == view.numel());
}

bool GradientViews::holds_set_by_hand(std::size_t parameter) const {
  const auto& grad = model_.tensor(parameter).grad();
  return grad.defined() && !is_view(parameter, grad);
}

torch::Tensor GradientViews::take_set_by_hand(std::size_t parameter) const {
  const auto& name = model_.name(parameter);
  auto& grad = model_.tensor(parameter).mutable_grad();
  if (grad.layout() != torch::kStrided) {
    throw Unsupported(fmt::format("parameter \"{}\" has a sparse gradient", name));
  }
  if (grad.requires_grad()) {
    throw Unsupported(
        fmt::format("parameter \"{}\": its gradient carries a graph (create_graph)", name));
  }
  return std::exchange(grad, torch::Tensor());
}

void GradientViews::require_cleared(std::size_t parameter, std::int64_t step) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined() || !is_view(parameter, grad)) return;
  const bool written = grad._version() != versions_[parameter];
  if (written && all_zero(grad.data_ptr(), grad.nbytes())) return;
  throw BadInput(
      fmt::format("parameter \"{}\" still holds the reduced gradient of step {}: call zero_grad() "
                  "before the next backward, or run several backwards of one step in accumulate()",
                  model_.name(parameter), step));
}

}  // namespace tutti
