#pragma once

// Gradients of a model's split parameters in the steps of a DataParallel. No worker has those of
// another: what the layers' backwards give here is the sum over the workers already, each one's
// multiplied by its weight, so that the division by the sum of the weights is all that is left.
//
// Threads: the one that runs backward. Failure: InvalidArgument names the parameter.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/model/gradient_hooks.h"
#include "torch/split/split_layers.h"

namespace tutti {

class SplitGradients {
 public:
  /// `model` is named in errors.
  SplitGradients(SplitLayers layers, const std::string& model);
  ~SplitGradients();
  SplitGradients(const SplitGradients&) = delete;
  SplitGradients& operator=(const SplitGradients&) = delete;

  std::size_t size() const { return parameters_.size(); }
  /// Hooks all parameters, which tell `sink`: the first one as parameter number `first`.
  void attach(const std::weak_ptr<GradientSink>& sink, std::size_t first);
  /// Before a step: hooks parameters that have come to require a gradient since.
  void attach_new();

  /// The weight of this worker's loss in the backwards that come.
  void set_weight(double weight) const { layers_.set_weight(weight); }
  /// What a backward of step `step` gives, which is added to those before it. InvalidArgument where
  /// param.grad still holds one of an earlier step.
  void take(std::size_t parameter, const torch::Tensor& value, std::int64_t step);
  /// torch was to accumulate: takes out of param.grad what is there, and hooks the parameter.
  /// Undefined where nothing is.
  torch::Tensor take_accumulated(std::size_t parameter);
  /// The step is over: param.grad is the sum divided by `divisor`; undefined where no backward came
  /// to it, or `divisor` is 0.
  void install(double divisor);
  /// The step has failed: all gradients become undefined.
  void drop() noexcept;
  /// InvalidArgument where the program took the post-accumulate hook of a parameter.
  void require_own_slots() const;
  /// Backwards that reach the parameters once this is gone log `warning`, once.
  void leave(const std::string& warning);

 private:
  struct Parameter {
    std::string label;
    torch::Tensor tensor;
    torch::Tensor sum = {};  ///< of the open step; undefined before the first backward
    std::unique_ptr<ParameterHooks> hooks = {};
  };

  SplitLayers layers_;
  std::shared_ptr<const std::string> name_;  ///< as the owner of layers that update themselves
  std::vector<Parameter> parameters_;
};

}  // namespace tutti
