#pragma once

// torch's own optimizers, or one's own ones of that kind, as rules of a Trainer:
//
//   tutti::torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3))
//
// The Trainer makes one for each tile of 4096 elements of a parameter, seen as a vector, and lets
// the worker that owns the tile run it: so it must be element-wise, which is tried out on random
// numbers when the rule is made. Its tensors of state live in the memory that all workers share.
// A parameter that no shard touched is not shown to it.
//
// Threads: values; the factory is called on the thread of the Trainer. Failure: InvalidArgument.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/optimizer.h"

namespace tutti {

/// A new optimizer of these tensors, always with the same options.
using TorchOptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor> tensors)>;

/// The rule's text, which logs and checkpoints compare, is the type's name with its options. They
/// need a learning rate (get_lr, set_lr), because schedules multiply it. InvalidArgument for an
/// optimizer that
///   - gives other bytes when a tensor is cut into tiles (LBFGS, LAMB, LARS, and what draws random
///     numbers),
///   - changes a tensor without a gradient,
///   - keeps state that is neither numbers nor tensors of the parameter's size and type.
Optimizer::Rule torch_optimizer(TorchOptimizerFactory make);

template <class TorchOptimizer, class Options>
Optimizer::Rule torch_optimizer(const Options& options) {
  return torch_optimizer([options](std::vector<torch::Tensor> tensors) {
    return std::make_unique<TorchOptimizer>(std::move(tensors), options);
  });
}

}  // namespace tutti
