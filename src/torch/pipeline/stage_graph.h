#pragma once

// One shard's run through one stage, as autograd's graph: it begins at the tensors that enter, and
// its backward begins at those that leave. Backward runs at once, or in two halves: the gradients
// of what enters, which the stage before waits for, and those of parameters.
//
//   enter → the stage's layers → leave │ backward
//                                      │ backward_inputs → backward_weights
//
// A backward adds up gradients in the order in which that of the whole model does: what a later
// stage has found for a tensor, or a parameter, of this one comes first.
//
// Threads: one; backward on the one that ran forward. Failure: what autograd throws.

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tutti/tensors.h"

namespace tutti {

/// The gradient that later stages have found for a parameter.
struct ParameterGradient {
  torch::Tensor parameter;
  torch::Tensor gradient;
};

class StageGraph {
 public:
  StageGraph();
  ~StageGraph();
  StageGraph(StageGraph&&) noexcept;
  StageGraph& operator=(StageGraph&&) noexcept;

  /// The tensors on which the stage's layers run: of those marked, gradients are found. In-place
  /// changes of them are as those of any result.
  TensorList enter(const TensorList& values, const std::vector<std::uint8_t>& need_gradient);
  /// The stage gives these. Their memory is not kept.
  void leave(const TensorList& results);
  /// The leaves that need a gradient and that results were computed from: parameters.
  const TensorList& parameters() const { return parameters_; }
  /// Whether results were computed from what has entered another graph.
  bool reaches_elsewhere() const { return reaches_elsewhere_; }

  /// The whole backward. `gradients` of the results, undefined where there is none; `more` of
  /// parameters of this stage, from later ones.
  void backward(const TensorList& gradients, const std::vector<ParameterGradient>& more);
  /// The first half: gradients of what has entered, and of the parameters in `also`, and whatever
  /// cannot be found later. Nodes that parameters hang on keep what has come to them; nothing else
  /// of the graph is kept.
  void backward_inputs(const TensorList& gradients, const std::vector<ParameterGradient>& more,
                       const TensorList& also);
  /// The second half: of all other parameters.
  void backward_weights();

  /// The gradients of what has entered, undefined where there is none; once, when the backward, or
  /// its first half, is over.
  TensorList take_input_gradients();

 private:
  class Entrance;
  class Arrival;
  class Release;
  struct Impl;
  struct Halves;
  void look_through();
  std::unique_ptr<Impl> impl_;
  TensorList parameters_;
  bool reaches_elsewhere_ = false;
};

}  // namespace tutti
