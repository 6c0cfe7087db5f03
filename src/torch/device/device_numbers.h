#pragma once

// Numbers that a step computes on a device and the host needs: they come in one copy, once it is
// over.
//
// Threads: one at a time. Failure: TorchDevice's.

#include <torch/torch.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "torch/device/torch_device.h"

namespace tutti {

class DeviceNumbers {
 public:
  /// Keeps a reference.
  explicit DeviceNumbers(TorchDevice& device) : device_(device) {}

  /// The place of a number among those of fetch(): a tensor of one element, of the device or of the
  /// host, of floating point. Nobody writes to it.
  std::size_t add(const torch::Tensor& number);
  /// The same where somebody might.
  std::size_t add_copy(const torch::Tensor& number);
  /// All since the last call, as float64. Waits for what the calling thread has queued.
  std::vector<double> fetch();
  void drop() noexcept {
    count_ = 0;
    numbers_.clear();
  }

 private:
  TorchDevice& device_;
  std::size_t count_ = 0;
  std::map<torch::ScalarType, std::vector<std::pair<std::size_t, torch::Tensor>>> numbers_;
};

}  // namespace tutti
