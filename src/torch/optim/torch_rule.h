#pragma once

// A torch optimizer as the rule of parameters: how to make one for a tile, tried out beforehand.
//
// Threads: one. Failure: InvalidArgument where it is not element-wise.

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/optim/optimizer_state.h"
#include "tutti/torch_optimizer.h"

namespace tutti {

class TorchRule {
 public:
  explicit TorchRule(TorchOptimizerFactory make);

  /// "RMSprop lr 0.01 alpha 0.99 …"
  const std::string& text() const { return text_; }
  /// The learning rate of the optimizer's first group of parameters.
  double learning_rate() const { return learning_rate_; }
  /// Names of its tensors of state, ascending.
  const std::vector<std::string>& states() const { return states_; }
  /// InvalidArgument unless `numbers` are those of such a state.
  void check_numbers(const nlohmann::json& numbers) const;

  std::unique_ptr<torch::optim::Optimizer> make(const std::vector<torch::Tensor>& tensors) const;
  /// Replaces the optimizer's state of the tensor: it works on the given tensors themselves.
  void replace_state(torch::optim::Optimizer& optimizer, const torch::Tensor& tensor,
                     const OptimizerState& contents) const;

 private:
  void try_out(torch::ScalarType type);
  void try_state(torch::optim::Optimizer& optimizer, const torch::Tensor& tile,
                 std::optional<OptimizerState>& moved);
  void take_names(const OptimizerState& contents, const torch::Tensor& tile);

  TorchOptimizerFactory make_;
  std::string text_;
  std::vector<std::string> states_;
  double learning_rate_ = 0;
  nlohmann::json numbers_ = nlohmann::json::object();             ///< of some state
  std::unique_ptr<torch::optim::OptimizerParamState> prototype_;  ///< null: it keeps no state
};

}  // namespace tutti
