#pragma once

// The models, data and optimizers that every contestant of bench/step trains; models.py has the
// same for PyTorch's DistributedDataParallel.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

namespace bench {

struct Task {
  std::shared_ptr<torch::nn::Module> model;
  /// Forward on this rank's batch.
  std::function<torch::Tensor()> loss;
};

/// "mlp", "lstm", "convolution" or "embedding". Weights are the same on all ranks, data are not.
Task make_task(const std::string& name, int rank);

/// Applies one update from the gradients, then lets go of them. "adam" is torch::optim::Adam,
/// "fused" the same update by at::_fused_adam_, "none" leaves parameters and gradients alone.
std::function<void()> make_update(const std::string& name, const torch::nn::Module& model);

}  // namespace bench
