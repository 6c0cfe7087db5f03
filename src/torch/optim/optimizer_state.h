#pragma once

// What a torch optimizer keeps of one tensor, by name: read and replaced through torch's archives,
// the one way that all its optimizers share.
//
// Threads: one. Failure: InvalidArgument for state that is neither a number nor a tensor;
// c10::Error for what the optimizer cannot read back.

#include <torch/torch.h>

#include <string>

#include <nlohmann/json.hpp>

#include "torch/model/wrapped_model.h"

namespace tutti {

struct OptimizerState {
  NamedTensors tensors;    ///< ascending by name
  nlohmann::json numbers;  ///< an object: integers, floats and truth values by name
};

/// Copies.
OptimizerState contents_of(const torch::optim::OptimizerParamState& state);

/// State of the prototype's type with these contents. It works on the given tensors themselves.
std::unique_ptr<torch::optim::OptimizerParamState> state_from(
    const torch::optim::OptimizerParamState& prototype, const OptimizerState& contents);

/// Null where the optimizer keeps nothing of the tensor.
const torch::optim::OptimizerParamState* kept_of(const torch::optim::Optimizer& optimizer,
                                                 const torch::Tensor& tensor);
void replace_state(torch::optim::Optimizer& optimizer, const torch::Tensor& tensor,
                   std::unique_ptr<torch::optim::OptimizerParamState> state);

/// "lr 0.01 alpha 0.99 eps 1e-08": every option of the first group.
std::string options_text(const torch::optim::Optimizer& optimizer);

}  // namespace tutti
