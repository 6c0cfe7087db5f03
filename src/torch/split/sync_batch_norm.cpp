#include "tutti/sync_batch_norm.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <optional>
#include <vector>

#include "torch/model/loss_weight.h"
#include "torch/ops/collective_node.h"
#include "torch/split/layer_agreement.h"
#include "torch/split/split_rows.h"
#include "tutti/error.h"
#include "tutti/ops.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

/// All dimensions but that of channels.
std::vector<std::int64_t> other_dims(const torch::Tensor& x) {
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

/// [C] to what broadcasts over [b, C, *].
torch::Tensor over(const torch::Tensor& channels, const torch::Tensor& x) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[1] = x.size(1);
  return channels.view(sizes);
}

/// Narrow types are added in 32 bits.
torch::Tensor wide(const torch::Tensor& x) {
  const bool is_wide = x.scalar_type() == torch::kFloat64 || x.scalar_type() == torch::kFloat32;
  return is_wide ? x : x.to(torch::kFloat32);
}

/// What backward needs of the samples. Where the layer is affine, their normalised values, which
/// nobody else has. Otherwise these are the result, which the program may change in place, so that
/// the samples are kept, as torch's batch norm does: torch's error tells where these were changed.
class KeptSamples {
 public:
  KeptSamples(const torch::Tensor& x, const torch::Tensor& normal, bool is_affine,
              torch::Tensor mean, torch::Tensor inverse)
      : mean_(std::move(mean)), inverse_(std::move(inverse)) {
    if (is_affine) {
      normal_ = normal.detach();
    } else {
      // A tensor of inference mode cannot be kept.
      samples_.emplace(x.is_inference() ? x.clone() : x, /*is_output=*/false);
    }
  }
  torch::Tensor normal() const {
    if (!samples_) return wide(normal_);
    const auto x = wide(samples_->unpack().detach());
    return (x - over(mean_, x)) * over(inverse_, x);
  }

 private:
  torch::Tensor mean_;     ///< [C]
  torch::Tensor inverse_;  ///< [C]
  torch::Tensor normal_;
  std::optional<torch::autograd::SavedVariable> samples_;
};

}  // namespace

/// Statistics of the samples of all members, in float64, on the CPU.
struct SyncBatchNormImpl::Statistics {
  double count = 0;
  torch::Tensor mean;     ///< [C]
  torch::Tensor squares;  ///< [C]: Σ (x − mean)²
};

SyncBatchNormImpl::SyncBatchNormImpl(const Group& group, const torch::nn::BatchNormOptions& options)
    : torch::nn::Module("SyncBatchNorm"), group_(group), options_(options) {
  const auto channels = options_.num_features();
  if (channels < 1) throw InvalidArgument(fmt::format("SyncBatchNorm: {} channels", channels));
  const auto& momentum = options_.momentum();
  if (!(options_.eps() >= 0) || (momentum && !(*momentum >= 0 && *momentum <= 1))) {
    throw InvalidArgument(
        fmt::format("SyncBatchNorm: eps {}, momentum {}", options_.eps(), momentum.value_or(0)));
  }
  require_same_layer(group_, "SyncBatchNorm",
                     {{"channels", std::to_string(channels)},
                      {"eps", fmt::format("{}", options_.eps())},
                      {"momentum", momentum ? fmt::format("{}", *momentum) : "cumulative"},
                      {"affine", options_.affine() ? "yes" : "no"},
                      {"track_running_stats", options_.track_running_stats() ? "yes" : "no"}});
  if (options_.affine()) {
    weight = register_parameter("weight", torch::ones({channels}));
    bias = register_parameter("bias", torch::zeros({channels}));
  }
  if (!options_.track_running_stats()) return;
  running_mean = register_buffer("running_mean", torch::zeros({channels}));
  running_var = register_buffer("running_var", torch::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", torch::tensor(0, torch::kInt64));
}

void SyncBatchNormImpl::require(const torch::Tensor& x) const {
  if (x.defined() && x.is_floating_point() && x.dim() >= 2 &&
      x.size(1) == options_.num_features()) {
    return;
  }
  throw InvalidArgument(
      fmt::format("SyncBatchNorm takes [b, {}, *], not {}", options_.num_features(),
                  x.defined() ? c10::toString(x.scalar_type()) + (' ' + c10::str(x.sizes()))
                              : std::string("nothing")));
}

SyncBatchNormImpl::Statistics SyncBatchNormImpl::statistics_of(const torch::Tensor& x) const {
  const auto channels = x.size(1);
  const auto count = x.numel() / channels;
  const auto on_host = torch::dtype(torch::kFloat64).device(torch::kCPU);
  auto mine = torch::zeros({1, 1 + 2 * channels}, on_host);
  if (count > 0) {
    const auto [variance, mean] = torch::var_mean(wide(x), other_dims(x), /*unbiased=*/false);
    mine[0][0] = static_cast<double>(count);
    mine[0].slice(0, 1, 1 + channels).copy_(mean);
    mine[0].slice(0, 1 + channels).copy_(variance.to(torch::kFloat64) * count);
  }
  const auto of_all =
      tutti::all_gather(group_, mine, {.label = label_of("SyncBatchNorm", "statistics")});
  Statistics all{.mean = torch::zeros({channels}, on_host),
                 .squares = torch::zeros({channels}, on_host)};
  for (int r = 0; r < group_.size(); ++r) {
    const double more = of_all[r][0].item<double>();
    if (more == 0) continue;
    const double sum = all.count + more;
    const auto step = of_all[r].slice(0, 1, 1 + channels) - all.mean;
    all.mean += step * (more / sum);
    all.squares += of_all[r].slice(0, 1 + channels) + step * step * (all.count * more / sum);
    all.count = sum;
  }
  if (all.count < 2) {
    throw InvalidArgument(fmt::format(
        "SyncBatchNorm: expected more than 1 value per channel when training, got {} over all "
        "members, here of {}",
        all.count, c10::str(x.sizes())));
  }
  return all;
}

void SyncBatchNormImpl::track(const Statistics& all) {
  if (!running_mean.defined()) return;
  num_batches_tracked += 1;
  const double share =
      options_.momentum() ? *options_.momentum() : 1 / num_batches_tracked.item<double>();
  const auto follow = [share](torch::Tensor& running, const torch::Tensor& now) {
    running.copy_(running.to(torch::kFloat64) * (1 - share) + (now * share).to(running.device()));
  };
  follow(running_mean, all.mean);
  follow(running_var, all.squares / (all.count - 1));
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& x) {
  require(x);
  if (!is_training()) {
    return torch::batch_norm(x, weight, bias, running_mean, running_var, !running_mean.defined(),
                             0.0, options_.eps(), /*cudnn_enabled=*/false);
  }
  torch::Tensor normal;
  torch::Tensor mean;     // [C]
  torch::Tensor inverse;  // 1 / √(variance + eps), [C]
  double count = 0;
  {
    const torch::NoGradGuard no_grad;
    const auto all = statistics_of(x);
    track(all);
    count = all.count;
    const auto values = wide(x);
    mean = all.mean.to(values.device(), values.scalar_type());
    inverse =
        (all.squares / count + options_.eps()).rsqrt().to(values.device(), values.scalar_type());
    normal = ((values - over(mean, x)) * over(inverse, x)).to(x.scalar_type());
  }
  if (!ops::records_gradients(x.scalar_type())) return affine(normal);
  // ∂/∂x of n = (x − mean) / √(variance + eps), where mean and variance have all samples: the
  // members' gradients are added with their weights, and each one's leaves without.
  const auto gradient_of =
      [group = group_,
       kept = std::make_shared<const KeptSamples>(x, normal, weight.defined(), mean, inverse),
       inverse, count, learns = x.requires_grad(),
       label = label_of("SyncBatchNorm", "gradient of statistics")](const torch::Tensor& gradient) {
        const auto own = wide(gradient);
        const auto n = kept->normal();
        const auto dims = other_dims(own);
        auto sums = weighted(torch::stack({own.sum(dims), (own * n).sum(dims)}).to(torch::kFloat64),
                             group, "SyncBatchNorm");
        tutti::all_reduce(group, sums, Reduction::sum, {.label = label});
        const double weight = ops::loss_weight(group);
        const bool counts = weight != 0;
        sums /= counts ? count * weight : count;
        const auto means = sums.to(own.scalar_type());
        const auto centre = counts ? own - over(means[0], own) : -over(means[0], own);
        auto all =
            ((centre - n * over(means[1], own)) * over(inverse, own)).to(gradient.scalar_type());
        return counts || !learns ? all : taken_without_weight(std::move(all), "SyncBatchNorm");
      };
  return affine(ops::with_gradient(normal, x, gradient_of));
}

torch::Tensor SyncBatchNormImpl::affine(const torch::Tensor& normal) const {
  if (!weight.defined()) return normal;
  return (normal * over(weight, normal) + over(bias, normal)).to(normal.scalar_type());
}

}  // namespace tutti
