#pragma once

// The models, data and optimizers that every contestant of bench/step and bench/memory trains;
// models.py has the same for PyTorch's DistributedDataParallel.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace bench {

/// Adam's, whoever brings it; all else has torch's defaults.
inline constexpr double kLearningRate = 1e-4;

struct Task {
  std::shared_ptr<torch::nn::Module> model;
  /// Forward on that batch, a rank's own or a shard's, where the model is.
  std::function<torch::Tensor(std::int64_t batch)> loss;
};

/// "mlp", "mlp25m", "mlp50m", "lstm", "convolution", "digits", "embedding", "many", "bag" or
/// "sparse_bag", on the CPU. Weights and batches are the same wherever they are made. A batch is so
/// many times what one worker has.
Task make_task(const std::string& name, int times = 1);

/// Applies one update from the gradients, then lets go of them. "adam" is torch::optim::Adam,
/// "fused" the same update by at::_fused_adam_.
std::function<void()> make_update(const std::string& name, const torch::nn::Module& model);

}  // namespace bench
