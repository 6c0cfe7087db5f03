#pragma once

// The layers of a model that are split over a group, found by their type.
//
// Threads: any. Failure: InvalidArgument names a layer that is split over some members of the group
// and others.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tutti/split_module.h"

namespace tutti {

struct SplitLayers {
  /// All that are split over the group, and those that are not split, and whose backward is one of
  /// all members.
  std::vector<WeightedLayer*> weighted;
  std::vector<SplitModule*> split;  ///< of them
  /// Their parameters, each under its first name.
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  std::unordered_set<const void*> tensors;  ///< of these layers, buffers too
  /// Names of layers of which all members of the group have the same part.
  std::vector<std::string> of_other_groups;

  bool has(const torch::Tensor& tensor) const {
    return tensors.contains(tensor.unsafeGetTensorImpl());
  }
  /// Tells those of `split` how much this member's loss counts.
  void set_weight(double weight) const {
    for (auto* layer : split) layer->set_gradient_weight(weight);
  }
};

/// How many job ranks two groups have in common. Those of a layer and of a DataParallel that have
/// one have its rows in common, those of several others.
std::int64_t common_ranks(const std::vector<int>& one, const std::vector<int>& other);

/// `ranks`: job ranks of the group's members.
SplitLayers find_split_layers(torch::nn::Module& module, const std::vector<int>& ranks);

/// Such layers learn their names in the model, for errors.
void name_layers(torch::nn::Module& module);

}  // namespace tutti
