#pragma once

// What DataParallel and Trainer need to know of a model: its parameters and buffers in registration
// order, where they lie, and whether they still lie there.
//
// Threads: one.

#include <torch/torch.h>

#include <chrono>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sync/plan/plan.h"
#include "sync/step/step_exchange.h"
#include "torch/model/parameter_roles.h"
#include "tutti/group.h"

namespace tutti {

class WrappedModel {
 public:
  /// A parameter registered under two names (tied weights) is taken once, under the first. A model
  /// all of whose parameters are split has none here.
  /// `owner` is who wraps it, in errors.
  WrappedModel(torch::nn::Module& module, const ParameterRoles& roles,
               std::string owner = "DataParallel");
  /// A parameter listed twice is InvalidArgument.
  WrappedModel(NamedTensors parameters, const ParameterRoles& roles);

  /// Null where named tensors are wrapped.
  const torch::nn::Module* module() const { return module_; }
  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }
  const std::string& name(std::size_t parameter) const { return parameters_[parameter].first; }
  /// All names under which it is registered, the first one first.
  const std::vector<std::string>& names(std::size_t parameter) const { return names_[parameter]; }
  const std::vector<std::vector<std::string>>& all_names() const { return names_; }
  /// `parameter "0.weight" of "model"`: in errors.
  std::string label(std::size_t parameter) const;
  /// Which of the roles are given and hold for nothing: "per_replica", "row_sparse", …
  const std::vector<std::string>& unmatched() const { return roles_.unmatched; }
  const torch::Tensor& tensor(std::size_t parameter) const { return parameters_[parameter].second; }

  /// Where parameters and buffers are, all of them.
  c10::Device device() const { return device_; }

  bool row_sparse(std::size_t parameter) const { return roles_.row_sparse[parameter]; }
  bool is_per_replica(std::size_t parameter) const { return roles_.per_replica[parameter]; }
  /// The parameter's owner; −1: it has none.
  std::int64_t owner(std::size_t parameter) const { return roles_.owners[parameter]; }
  /// Number of parameters that have an owner, row-sparse ones included.
  std::size_t owned() const { return roles_.owned(); }
  bool is_per_replica_buffer(std::size_t buffer) const { return roles_.replica_buffers[buffer]; }

  /// The model, these settings, and what bits depend on besides (arithmetic.h).
  /// `is_summed_elsewhere`: as TensorSpec has it, of all parameters.
  Plan plan(const std::vector<std::pair<std::string, std::string>>& settings,
            bool is_summed_elsewhere = false) const;
  ModelMemory memory() const;

  /// InvalidArgument where a parameter lies in memory of another one, or of a buffer: once they are
  /// moved, what is written to one would not be seen in the other.
  void require_apart() const;
  /// Parameters in whose memory tensors lie that the module does not register (a view, detach()).
  std::vector<std::string> with_aliases() const;

  /// InvalidArgument naming the parameter if it is no longer where it was (to(), load(), set_data).
  void require_in_place(std::size_t parameter) const;
  /// The same for all parameters.
  void require_all_parameters_in_place() const;
  /// The same for all parameters and buffers.
  void require_all_in_place() const;
  /// InvalidArgument naming parameters that were added to, removed from or replaced in the module
  /// since.
  void require_unchanged_list() const;

 private:
  void check(bool listed);
  void require_one_device() const;
  void take_roles(const ParameterRoles& roles);
  void find_names();
  NamedTensors list(const torch::nn::Module& module) const;
  std::string what(const char* kind, const std::string& name) const;

  std::string owner_ = "DataParallel";
  std::string model_;
  const torch::nn::Module* module_ = nullptr;
  ParameterRoles::Where excluded_;
  std::unordered_set<const void*> split_;
  bool excluded_any_ = false;
  NamedTensors parameters_;
  NamedTensors buffers_;
  c10::Device device_ = c10::kCPU;
  std::vector<std::vector<std::string>> names_;
  FoundRoles roles_;
  std::vector<const void*> addresses_;
  std::vector<std::pair<void*, std::size_t>> buffer_places_;
};

/// Rank 0 logs which options name no parameter.
void warn_of_unmatched(const WrappedModel& model, const std::string& name, const Group& group);

/// Replaces the bytes of all workers by rank 0's, for any type: torch's versions count where others
/// came. Collective.
void send_from_first_rank(const Group& group, const std::pair<std::string, torch::Tensor>& item,
                          std::optional<std::chrono::milliseconds> deadline);
void send_from_first_rank(const Group& group, const NamedTensors& tensors,
                          std::optional<std::chrono::milliseconds> deadline);

}  // namespace tutti
