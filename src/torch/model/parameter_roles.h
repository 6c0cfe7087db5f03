#pragma once

// Which parameters and buffers of a model are not like most others: declarations by name, and
// options of torch's own modules.
//
// Pure functions. Failure: InvalidArgument for roles that contradict each other, Unsupported for
// tensors that cannot have theirs; both name the parameter.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tutti {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Which parameters and buffers are not like most others. Of a parameter registered under several
/// names (tied weights) one that a function holds for is enough.
struct ParameterRoles {
  using Where = std::function<bool(const std::string& name)>;
  Where excluded = {};  ///< not wrapped at all
  /// Not wrapped either, each worker has rows of its own: parameters and buffers.
  std::unordered_set<const void*> split = {};
  Where row_sparse = {};   ///< besides those of embeddings with sparse(true)
  Where per_replica = {};  ///< each logical worker has its own
  /// The logical worker that alone updates a parameter.
  std::function<std::optional<std::int64_t>(const std::string& name)> placement = {};
  std::string model = {};  ///< named in errors
};

/// The roles of a model's tensors.
struct FoundRoles {
  // Per parameter:
  std::vector<bool> row_sparse;
  std::vector<bool> per_replica;
  std::vector<std::int64_t> owners;  ///< −1: none
  // Per buffer:
  std::vector<bool> replica_buffers;
  /// Which of the roles besides `excluded` are given and hold for nothing.
  std::vector<std::string> unmatched;

  /// Number of parameters that have an owner.
  std::size_t owned() const;
};

/// `names[p]` are all names of parameter p. `module` may be null.
FoundRoles find_roles(const ParameterRoles& roles, const torch::nn::Module* module,
                      const NamedTensors& parameters,
                      const std::vector<std::vector<std::string>>& names,
                      const NamedTensors& buffers);

}  // namespace tutti
