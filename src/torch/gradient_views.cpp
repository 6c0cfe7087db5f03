#include "torch/gradient_views.h"

#include <fmt/format.h>

#include "kernels/fold.h"
#include "torch/incoming_gradient.h"
#include "tutti/error.h"

namespace tutti {

GradientViews::GradientViews(const WrappedModel& model, const StepExchange& exchange)
    : model_(model) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& parameter = model_.tensor(p);
    versions_.push_back(0);
    rows_.emplace_back();
    installed_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>());
    if (model_.row_sparse(p)) {
      views_.emplace_back();
      continue;
    }
    views_.push_back(torch::from_blob(
        exchange.result(p), parameter.sizes(), parameter.strides(),
        [arena = exchange.arena()](void*) {}, parameter.options().requires_grad(false)));
  }
}

void GradientViews::install(const std::vector<std::uint8_t>& touched) {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    auto& grad = model_.tensor(p).mutable_grad();
    if (touched[p] && model_.row_sparse(p)) {
      grad = std::exchange(rows_[p], torch::Tensor());
      installed_[p] = grad._values().storage().getWeakStorageImpl();
    } else if (touched[p]) {
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
  if (model_.row_sparse(parameter)) {
    const auto installed = installed_[parameter].lock();
    return installed && grad.is_sparse() && grad._nnz() > 0 &&
           grad._values().storage().unsafeGetStorageImpl() == installed.get();
  }
  const auto& view = views_[parameter];
  if (grad.is_same(view)) return true;
  if (grad.layout() != torch::kStrided || grad.numel() != view.numel()) return false;
  return grad.numel() > 0 ? grad.data_ptr() == view.data_ptr() : grad.is_alias_of(view);
}

bool GradientViews::holds_set_by_hand(std::size_t parameter) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined() || is_view(parameter, grad)) return false;
  // What zero_grad(false) leaves of a sparse one.
  return !model_.row_sparse(parameter) || !grad.is_sparse() || grad._nnz() > 0;
}

torch::Tensor GradientViews::take_set_by_hand(std::size_t parameter) const {
  const auto& name = model_.name(parameter);
  auto& grad = model_.tensor(parameter).mutable_grad();
  const torch::NoGradGuard no_grad;
  require_plain(grad, name, model_.row_sparse(parameter));
  const auto& expected = model_.tensor(parameter);
  if (grad.sizes() != expected.sizes() || grad.scalar_type() != expected.scalar_type() ||
      !grad.device().is_cpu()) {
    throw BadInput(
        fmt::format("parameter \"{}\": its gradient was set to {} {} on {}, but it is {} {}", name,
                    c10::toString(grad.scalar_type()), c10::str(grad.sizes()), grad.device().str(),
                    c10::toString(expected.scalar_type()), c10::str(expected.sizes())));
  }
  return std::exchange(grad, torch::Tensor());
}

void GradientViews::require_none_set_by_hand(const char* where) const {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    if (!holds_set_by_hand(p)) continue;
    throw BadInput(
        fmt::format("parameter \"{}\": its gradient was set by hand {}, where nobody takes it",
                    model_.name(p), where));
  }
}

void GradientViews::require_cleared(std::size_t parameter, std::int64_t step) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined() || !is_view(parameter, grad)) return;
  const bool written = !model_.row_sparse(parameter) && grad._version() != versions_[parameter];
  if (written && all_zero(grad.data_ptr(), grad.nbytes())) return;
  throw BadInput(
      fmt::format("parameter \"{}\" still holds the reduced gradient of step {}: call zero_grad() "
                  "before the next backward, or run several backwards of one step in accumulate()",
                  model_.name(parameter), step));
}

}  // namespace tutti
