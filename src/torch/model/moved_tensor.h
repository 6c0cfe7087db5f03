#pragma once

// A tensor's elements where collectives reach them: its own memory, or, of one on a device, a copy
// of the host's, to which and from which the program's stream is not held up.
//
// Threads: one. Failure: Unsupported for tensors that are not moved (tensors.h); TorchDevice's.

#include <torch/torch.h>

#include <optional>

#include "torch/device/torch_device.h"
#include "tutti/group.h"

namespace tutti {

class MovedTensor {
 public:
  /// Keeps a reference to `tensor`. Nothing is moved yet.
  MovedTensor(const Group& group, const torch::Tensor& tensor, const CollectiveOptions& options);

  /// Its values. Waits for the device to have computed them.
  View values();
  /// Room for others, which it has after give().
  View room() const;
  /// It has what is in the view, as what the current stream is given next sees; torch's version of
  /// it counts that.
  void give();

 private:
  const torch::Tensor& tensor_;
  std::optional<TorchDevice> device_;
  torch::Tensor host_;  ///< undefined where the tensor is on the CPU
};

}  // namespace tutti
