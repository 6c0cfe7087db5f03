#pragma once

// A tensor's elements where collectives reach them: its own memory, or, of one on a device, a copy
// of the host's, to which and from which the program's stream is not held up.
//
// Threads: one. Failure: Unsupported for tensors that are not moved (tensors.h); InvalidArgument
// for a tensor on a device that a call under way of the group writes; TorchDevice's.

#include <torch/torch.h>

#include <optional>

#include "base/coming_input.h"
#include "torch/device/torch_device.h"
#include "tutti/group.h"

namespace tutti {

class MovedTensor final : public ComingInput {
 public:
  /// Nothing is moved yet.
  MovedTensor(const Group& group, const torch::Tensor& tensor, const CollectiveOptions& options);

  /// Its values. Waits for the device to have computed them.
  View values();
  /// Where they are once they have come: nothing is waited for.
  View coming();
  bool has_come() override;
  void wait() override;
  /// Room for others, which it has after give().
  View room() const;
  /// It has what is in the view, as what the current stream is given next sees; torch's version of
  /// it counts that.
  void give();

 private:
  torch::Tensor tensor_;
  std::optional<TorchDevice> device_;
  torch::Tensor host_;  ///< undefined where the tensor is on the CPU
  DeviceMark mark_;     ///< of its values
};

}  // namespace tutti
