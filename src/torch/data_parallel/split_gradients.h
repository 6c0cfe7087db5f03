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

#include "sync/step/step_part.h"
#include "torch/gradients/gradient_intake.h"
#include "torch/split/split_layers.h"

namespace tutti {

class SplitGradients : public StepPart {
 public:
  /// `model` is named in errors.
  SplitGradients(SplitLayers layers, const std::string& model);
  ~SplitGradients() override;
  SplitGradients(const SplitGradients&) = delete;
  SplitGradients& operator=(const SplitGradients&) = delete;

  std::size_t size() const { return parameters_.size(); }
  /// Adds all parameters to those that tell `sink`.
  void hook(HookedParameters& hooked, const std::weak_ptr<GradientSink>& sink) const;

  /// The weight of this worker's loss in the backwards that come.
  void set_weight(double weight) const { layers_.set_weight(weight); }
  /// What a backward of step `step` gives, which is added to those before it. InvalidArgument where
  /// param.grad still holds one of an earlier step.
  void take(std::size_t parameter, const torch::Tensor& value, std::int64_t step);
  /// param.grad is the sum divided by the step's weight, where the step divides; undefined where no
  /// backward came to it, or the weight is 0.
  void commit(StepFacts& step) override;
  /// All gradients become undefined.
  void drop() noexcept override;

 private:
  struct Parameter {
    std::string label;
    torch::Tensor tensor;
    torch::Tensor sum = {};  ///< of the open step; undefined before the first backward
  };

  SplitLayers layers_;
  std::shared_ptr<const std::string> name_;  ///< as the owner of layers that update themselves
  std::vector<Parameter> parameters_;
};

}  // namespace tutti
