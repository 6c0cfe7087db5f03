#include "tutti/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "run/numbers/loss_scaler.h"
#include "torch/model/real_numbers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// The elements of the optimizer's gradients, which may be the rows of sparse ones.
std::vector<torch::Tensor> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> gradients;
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      gradients.push_back(as_reals(gradient.is_sparse() ? gradient._values() : gradient));
    }
  }
  return gradients;
}

/// One answer of a device for all of them: NaN is above all else in a norm.
bool all_finite(const std::vector<torch::Tensor>& gradients) {
  std::vector<torch::Tensor> largest;
  for (const auto& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const auto one = torch::linalg_vector_norm(gradient, std::numeric_limits<double>::infinity());
    largest.push_back(one.to(gradients.front().device(), torch::kFloat64));
  }
  return largest.empty() || std::isfinite(torch::stack(largest).max().item<double>());
}

}  // namespace

LossScaler::LossScaler(const DataParallel& parallel, const LossScale& scale) : LossScaler(scale) {
  parallel_ = &parallel;
}

LossScaler::LossScaler(const LossScale& scale) : scale_(scale), state_{.factor = scale.start} {
  require_loss_scale(scale);
}

torch::Tensor LossScaler::scale(const torch::Tensor& loss) const {
  return state_.factor == 1 ? loss : loss * state_.factor;
}

/// As GradScaler does, by the reciprocal: exact where the factor is a power of two. An owner alone
/// has the gradients of its parameters, and layers may be split: so workers tell one another.
void LossScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (unscaled_.contains(&optimizer)) {
    throw InvalidArgument("unscale(): the gradients of this optimizer were divided since update()");
  }
  const torch::NoGradGuard no_grad;
  auto gradients = gradients_of(optimizer);
  for (const auto& gradient : gradients) {
    if (gradient.scalar_type() != torch::kHalf) continue;
    throw InvalidArgument(
        "unscale(): a gradient in float16, in which it may be 0 once it is divided: keep "
        "parameters in float32 and run forward under autocast, or train by a Trainer, which has "
        "master copies");
  }
  bool is_finite = all_finite(gradients);
  for (auto& gradient : gradients) {
    if (state_.factor != 1) gradient.mul_(1 / state_.factor);
  }
  if (parallel_ != nullptr) is_finite = parallel_->mean(is_finite ? 0 : 1) == 0;
  unscaled_[&optimizer] = {is_finite, false};
}

bool LossScaler::step(torch::optim::Optimizer& optimizer) {
  if (!unscaled_.contains(&optimizer)) unscale(optimizer);
  auto& [is_finite, has_stepped] = unscaled_[&optimizer];
  if (has_stepped) {
    throw InvalidArgument("step(): this optimizer has taken its step since update()");
  }
  has_stepped = true;
  if (is_finite) optimizer.step();
  return is_finite;
}

void LossScaler::update() {
  if (unscaled_.empty()) {
    throw InvalidArgument("update(): no optimizer's gradients were divided before it");
  }
  const bool all_finite = std::ranges::all_of(
      unscaled_, [](const auto& optimizer) { return optimizer.second.is_finite; });
  if (all_finite) {
    grow(scale_, state_);
  } else {
    shrink(scale_, state_);
  }
  unscaled_.clear();
}

void LossScaler::load(const LossScaleState& state) {
  const bool fits = scale_.dynamic
                        ? state.factor >= scale_.minimum && state.factor <= scale_.maximum
                        : state.factor == scale_.start;
  if (!fits || state.good_steps < 0) {
    throw InvalidArgument(
        fmt::format("load(): this loss scale never has the factor {}", state.factor));
  }
  state_ = state;
}

}  // namespace tutti
