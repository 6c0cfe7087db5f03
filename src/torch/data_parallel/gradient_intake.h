#pragma once

// How gradients get into the open step of a DataParallel: hooks on its parameters take them out of
// autograd, and what the program has put into param.grad by hand is taken from there.
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
#include "torch/data_parallel/gradient_views.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

class GradientIntake {
 public:
  /// Keeps references.
  GradientIntake(const WrappedModel& model, StepExchange& exchange, GradientViews& views,
                 const std::vector<GradientSource*>& sources)
      : model_(model), exchange_(exchange), views_(views), sources_(sources) {}

  /// Hooks all parameters, which tell `sink`.
  void attach(const std::weak_ptr<GradientSink>& sink);
  /// Before a step: hooks parameters that have come to require a gradient since.
  void attach_new();

  /// What a backward of the open leaf gives, after what was put in by hand. `last`: no other
  /// gradient of the parameter comes in this leaf.
  void take(std::size_t parameter, const torch::Tensor& value, bool last);
  /// Gradients that no backward of the open leaf produced.
  void take_set_by_hand(bool last);
  /// torch was to accumulate: takes out of param.grad what is there, and hooks the parameter.
  /// Undefined where nothing is.
  torch::Tensor take_accumulated(std::size_t parameter);

  /// Whether the program has put gradients in by hand since the last step. InvalidArgument where
  /// a reduced one of that step is still there.
  bool holds_set_by_hand() const;
  /// InvalidArgument where the program took the post-accumulate hook of a parameter.
  void require_own_slots() const;
  /// Backwards that reach the parameters once this is gone log `warning`, once.
  void leave(const std::string& warning);

 private:
  void write(std::size_t parameter, const torch::Tensor& value, bool last);

  const WrappedModel& model_;
  StepExchange& exchange_;
  GradientViews& views_;
  const std::vector<GradientSource*>& sources_;
  std::vector<std::unique_ptr<ParameterHooks>> hooks_;
};

}  // namespace tutti
