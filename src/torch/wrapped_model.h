#pragma once

// What DataParallel and Trainer need to know of a model: its parameters and buffers in registration
// order, where they lie, and whether they still lie there.
//
// Threads: one.

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sync/plan.h"
#include "sync/step_exchange.h"
#include "tutti/group.h"

namespace tutti {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;
/// Views of a run's own memory, by file of a checkpoint.
using TensorFiles = std::vector<std::pair<std::string, NamedTensors>>;

class WrappedModel {
 public:
  using Where = std::function<bool(const std::string& name)>;
  /// A parameter registered under two names (tied weights) is taken once, under the first.
  /// Gradients are row-sparse where `row_sparse` holds, and of embeddings with sparse(true).
  /// `owner` is who wraps it, in errors.
  WrappedModel(torch::nn::Module& module, const Where& exclude, const Where& row_sparse,
               std::string owner = "DataParallel");
  /// A parameter listed twice is BadInput.
  WrappedModel(NamedTensors parameters, const Where& exclude, const Where& row_sparse);

  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }
  const std::string& name(std::size_t parameter) const { return parameters_[parameter].first; }
  const torch::Tensor& tensor(std::size_t parameter) const { return parameters_[parameter].second; }

  bool row_sparse(std::size_t parameter) const { return row_sparse_[parameter]; }

  Plan plan(const std::vector<std::pair<std::string, std::string>>& settings) const;
  ModelMemory memory() const;

  /// BadInput naming the parameter if it is no longer where it was (to(), load(), set_data).
  void require_in_place(std::size_t parameter) const;
  /// The same for all parameters.
  void require_all_in_place() const;
  /// BadInput naming parameters that were added to, removed from or replaced in the module since.
  void require_unchanged_list() const;

 private:
  void check(bool listed);
  void find_row_sparse(const Where& declared);
  NamedTensors list(const torch::nn::Module& module) const;

  std::string owner_ = "DataParallel";
  const torch::nn::Module* module_ = nullptr;
  Where exclude_;
  NamedTensors parameters_;
  NamedTensors buffers_;
  std::vector<bool> row_sparse_;
  std::vector<const void*> addresses_;
  std::vector<std::pair<void*, std::size_t>> buffer_places_;
};

/// Rank 0's bytes replace everybody's, whatever their type. Collective.
void send_from_first_rank(const Group& group, const std::pair<std::string, torch::Tensor>& item,
                          std::optional<std::chrono::milliseconds> deadline);

}  // namespace tutti
