#pragma once

// The models, data and optimizers that every contestant of bench/step and bench/memory trains;
// models.py has the same for PyTorch's DistributedDataParallel.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

namespace bench {

/// Adam's, whoever brings it; all else has torch's defaults.
inline constexpr double kLearningRate = 1e-4;

struct Task {
  std::shared_ptr<torch::nn::Module> model;
  /// Forward on this rank's batch.
  std::function<torch::Tensor()> loss;
};

/// "mlp", "mlp50m", "lstm", "convolution", "embedding", "many", "bag" or "sparse_bag". Weights are
/// the same on all ranks, data are not. The batch is so many times what one worker has.
Task make_task(const std::string& name, int rank, int times = 1);

/// Applies one update from the gradients, then lets go of them. "adam" is torch::optim::Adam,
/// "fused" the same update by at::_fused_adam_.
std::function<void()> make_update(const std::string& name, const torch::nn::Module& model);

}  // namespace bench
