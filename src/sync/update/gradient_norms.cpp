#include "sync/update/gradient_norms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/norm.h"

namespace tutti {
namespace {

/// The constant of torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

double clip_scale(double bound, double norm) {
  return bound > 0 ? std::min(1.0, bound / (norm + kClipEpsilon)) : 1.0;
}

GradientNorms norms_of(const Plan& plan, const Clip& clip,
                       std::span<const std::uint32_t> parameters,
                       const std::function<std::span<const double>(std::uint32_t)>& blocks,
                       double elsewhere) {
  GradientNorms norms;
  std::vector<double> each(plan.parameters().size());
  for (const auto p : parameters) {
    const double squares = tree_sum(blocks(p));
    if (!std::isfinite(squares)) {
      norms.refusal = fmt::format("the sum of the gradients of \"{}\" is not finite",
                                  plan.parameters()[p].spec.name);
      return norms;
    }
    each[p] = std::sqrt(squares);
    norms.squares += squares;
  }
  norms.squares += elsewhere;
  if (!std::isfinite(norms.squares)) {
    norms.refusal = "the norm of the gradient is not finite";
    return norms;
  }
  if (!needs_norms(clip)) return norms;
  norms.scales.resize(each.size());
  const double norm = std::sqrt(norms.squares);
  for (const auto p : parameters) {
    norms.scales[p] = clip_scale(clip.norm, norm) * clip_scale(clip.parameter_norm, each[p]);
  }
  return norms;
}

}  // namespace tutti
