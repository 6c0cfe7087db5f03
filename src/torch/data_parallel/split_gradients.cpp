#include "torch/data_parallel/split_gradients.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// zero_grad(false) leaves zeros, or a sparse gradient without rows.
bool is_cleared(const torch::Tensor& gradient) {
  if (!gradient.defined()) return true;
  if (gradient.is_sparse()) return gradient._nnz() == 0;
  return gradient.is_non_overlapping_and_dense() &&
         all_zero(gradient.data_ptr(), gradient.nbytes());
}

}  // namespace

SplitGradients::SplitGradients(SplitLayers layers, const std::string& model)
    : layers_(std::move(layers)),
      name_(std::make_shared<const std::string>(fmt::format("DataParallel \"{}\"", model))) {
  for (auto* layer : layers_.split) {
    if (layer->updates_itself()) layer->take(name_);
  }
  for (const auto& [name, tensor] : layers_.parameters) {
    parameters_.push_back({fmt::format("parameter \"{}\" of \"{}\"", name, model), tensor});
  }
  set_weight(1);  // an earlier DataParallel may have told the weight of a backward that never came
}

SplitGradients::~SplitGradients() = default;

void SplitGradients::hook(HookedParameters& hooked, const std::weak_ptr<GradientSink>& sink) const {
  for (const auto& parameter : parameters_) hooked.add(parameter.tensor, parameter.label, sink);
}

void SplitGradients::take(std::size_t parameter, const torch::Tensor& value, std::int64_t step) {
  auto& [label, tensor, sum] = parameters_[parameter];
  require_plain(value, label, /*row_sparse=*/true);
  const torch::NoGradGuard no_grad;
  if (!is_cleared(tensor.grad())) {
    throw InvalidArgument(
        fmt::format("{} still holds a gradient as step {} gives it another one: before the next "
                    "backward call zero_grad() of the model; run several backwards of one step in "
                    "accumulate()",
                    label, step));
  }
  tensor.mutable_grad().reset();
  if (!sum.defined()) {
    sum = is_sole_owner(value) || value.is_sparse() ? value.detach() : value.detach().clone();
  } else if (!sum.is_sparse()) {
    sum.add_(value);
  } else {
    sum = (value.is_sparse() ? sum + value : value + sum);
    if (sum.is_sparse()) sum = sum.coalesce();
  }
}

void SplitGradients::commit(StepFacts& step) {
  const auto divisor = step.divides ? step.report.weight : 1;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    auto sum = std::exchange(parameter.sum, torch::Tensor());
    if (divisor == 0) sum.reset();
    if (sum.defined() && divisor != 1) sum.div_(divisor);
    parameter.tensor.mutable_grad() = std::move(sum);
  }
  for (auto* layer : layers_.split)
    divisor == 0 ? layer->forget_kept() : layer->divide_kept(divisor);
}

void SplitGradients::drop() noexcept {
  for (auto& parameter : parameters_) {
    parameter.sum.reset();
    parameter.tensor.mutable_grad().reset();
  }
  for (auto* layer : layers_.split) layer->forget_kept();
}

}  // namespace tutti
