#include "torch/model/weighted_mean.h"

#include <cmath>

#include "torch/model/loss_weight.h"
#include "torch/model/type_text.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {

torch::Tensor weighted_mean(const Group& group, const torch::Tensor& value, double weight,
                            std::optional<std::chrono::milliseconds> deadline,
                            const std::function<void(const std::function<void()>&)>& collectively) {
  require_weight(weight);
  if (!value.defined() || !value.is_floating_point()) {
    throw InvalidArgument("mean() needs a tensor of floating-point numbers");
  }
  const torch::NoGradGuard no_grad;
  // Behind the elements, their weight.
  auto sums = torch::zeros({value.numel() + 1}, torch::dtype(torch::kFloat64).device(torch::kCPU));
  auto elements = sums.narrow(0, 0, value.numel());
  if (weight > 0) elements.copy_(value.detach().reshape(-1));
  if (group.size() > 1) {
    elements.mul_(weight);
    sums[value.numel()] = weight;
    // Compared on all workers.
    const auto label = "mean() of " + type_text(value);
    const CollectiveOptions options{.label = label, .deadline = deadline};
    collectively([&] { all_reduce(group, sums, Reduction::sum, options); });
    elements.div_(sums[value.numel()]);
  } else if (weight == 0) {
    elements.fill_(std::nan(""));
  }
  return elements.reshape(value.sizes()).to(value.device(), value.scalar_type());
}

}  // namespace tutti
