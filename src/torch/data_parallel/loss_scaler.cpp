#include "tutti/loss_scaler.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "run/numbers/loss_scaler.h"
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
      gradients.push_back(gradient.is_sparse() ? gradient._values() : gradient);
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

/// As GradScaler does, by the reciprocal: exact where the factor is a power of two.
void LossScaler::unscale(torch::optim::Optimizer& optimizer) {
  auto& seen = seen_[&optimizer];
  if (seen.is_unscaled) {
    throw InvalidArgument("unscale(): the gradients of this optimizer were divided since update()");
  }
  const torch::NoGradGuard no_grad;
  for (auto& gradient : gradients_of(optimizer)) {
    if (state_.factor == 1) break;
    gradient.mul_(1 / state_.factor);
  }
  seen.is_unscaled = true;
}

bool LossScaler::step(torch::optim::Optimizer& optimizer) {
  auto& seen = seen_[&optimizer];
  if (seen.has_stepped) {
    throw InvalidArgument("step(): this optimizer has taken its step since update()");
  }
  if (!seen.is_unscaled) unscale(optimizer);
  seen.has_stepped = true;
  bool is_good = false;
  {
    const torch::NoGradGuard no_grad;
    is_good = all_finite(gradients_of(optimizer));
  }
  // An owner alone has the gradients of its parameters, and layers may be split.
  if (parallel_ != nullptr) is_good = parallel_->mean(is_good ? 0 : 1) == 0;
  if (is_good) {
    optimizer.step();
  } else {
    was_left_out_ = true;
  }
  return is_good;
}

void LossScaler::update() {
  if (seen_.empty()) throw InvalidArgument("update(): no optimizer has taken a step before it");
  if (was_left_out_) {
    shrink(scale_, state_);
  } else {
    grow(scale_, state_);
  }
  was_left_out_ = false;
  seen_.clear();
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
