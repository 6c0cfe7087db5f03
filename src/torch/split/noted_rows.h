#pragma once

// Which tensors are rows of split layers: a tensor alone does not show it.
//
// Threads: any. Failure: as each function says.

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/model/wrapped_model.h"
#include "tutti/group.h"

namespace tutti {

class NotedRows {
 public:
  /// Notes the parameters that are registered in `layer` itself, which is split over job ranks
  /// `ranks`, for as long as what is returned lives.
  static std::shared_ptr<const void> add(const torch::nn::Module& layer, std::vector<int> ranks);
  /// The name of the layer of which `parameter` is rows, where it is split over several of these
  /// ranks, which have other rows then; empty where it is of none.
  static std::string layer_of(const torch::Tensor& parameter, const std::vector<int>& ranks);
};

/// InvalidArgument for a parameter that is this member's rows of a layer that is split over the
/// group: a model that is given by its tensors does not show whose rows they are. `owner` is who
/// wraps it.
void require_whole(const WrappedModel& model, const Group& group, const char* owner);

}  // namespace tutti
