#pragma once

// How gradients of a model get into the open leaf of a step: hooks on its parameters take them out
// of autograd, and each is checked, laid out as it is folded, and written.
//
//   hooks → the sink │ check() │ laid_out() │ its hash, for an audit │ write()
//
// Threads: the one that runs backward. Failure: InvalidArgument or Unsupported names the parameter;
// an open step is to be dropped then.

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "sync/step/gradient_source.h"
#include "sync/step/step_exchange.h"
#include "torch/gradients/device_gradients.h"
#include "torch/gradients/incoming_gradient.h"
#include "torch/gradients/zero_copy_gradients.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/host_copies.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

/// Parameters whose hooks tell one sink: each by its place in the list.
class HookedParameters {
 public:
  /// Hooks one more. `label` begins errors.
  void add(const torch::Tensor& parameter, std::string label,
           const std::weak_ptr<GradientSink>& sink);
  std::size_t size() const { return all_.size(); }
  /// Before a step: hooks parameters that have come to require a gradient since.
  void attach_new();
  /// torch was to accumulate: takes out of param.grad what is there, and hooks the parameter.
  /// Undefined where nothing is.
  torch::Tensor take_accumulated(std::size_t parameter);
  /// InvalidArgument where the program took the post-accumulate hook of a parameter.
  void require_own_slots() const;
  /// Backwards that reach one of [begin, end) once this is gone log `warning`, once.
  void leave(std::size_t begin, std::size_t end, const std::string& warning);

 private:
  struct Hooked {
    torch::Tensor tensor;
    std::string label;
    std::unique_ptr<ParameterHooks> hooks;
  };
  std::vector<Hooked> all_;
};

class GradientIntake {
 public:
  /// Keeps references. `zero_copy`, null without, may leave a gradient where a backward made it.
  /// `host` is null where the model is on the CPU; `numbers` are DeviceGradients'.
  GradientIntake(const WrappedModel& model, StepExchange& exchange,
                 const std::vector<GradientSource*>& sources, ZeroCopyGradients* zero_copy,
                 HostCopies* host = nullptr, DeviceNumbers* numbers = nullptr);
  GradientIntake(const GradientIntake&) = delete;
  GradientIntake& operator=(const GradientIntake&) = delete;

  /// Throws where the gradient cannot be reduced.
  void check(std::size_t parameter, const torch::Tensor& value) const {
    require_plain(value, model_.label(parameter), model_.row_sparse(parameter));
  }
  IncomingGradient laid_out(std::size_t parameter, const torch::Tensor& value) const {
    const bool row_sparse = model_.row_sparse(parameter);
    return {value, model_.tensor(parameter), row_sparse ? model_.label(parameter) : std::string(),
            row_sparse};
  }
  /// Writes a gradient that is `times` too large. `last`: no other one of the parameter comes in
  /// this leaf.
  void write(std::size_t parameter, const IncomingGradient& gradient, bool last, double times);
  /// Nodes that have left have come when it returns: those of a device come later.
  void settle() {
    if (coming_) coming_->settle();
  }
  /// Gradients on their way do not count.
  void drop() noexcept {
    if (coming_) coming_->drop();
  }
  /// Which a model on a device alone has.
  DeviceGradients& device() const { return *coming_; }

 private:
  void note(std::size_t parameter, double times);

  const WrappedModel& model_;
  StepExchange& exchange_;
  const std::vector<GradientSource*>& sources_;
  ZeroCopyGradients* zero_copy_;
  std::unique_ptr<DeviceGradients> coming_;  ///< null where the model is on the CPU
};

}  // namespace tutti
