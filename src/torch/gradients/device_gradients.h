#pragma once

// Gradients on their way from a device to the host: each is copied while backward goes on, and
// written into the open leaf once it has come, by whoever brings the next one or waits for all.
//
// Threads: one at a time. Failure: TorchDevice's; that of what writes.

#include <torch/torch.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "torch/gradients/host_copies.h"

namespace tutti {

class DeviceGradients {
 public:
  /// `at`: the elements, in the parameter's layout.
  using Write = std::function<void(std::size_t parameter, const void* at, bool last, double times)>;
  /// Keeps a reference.
  DeviceGradients(HostCopies& host, Write write) : host_(host), write_(std::move(write)) {}

  /// The gradient is in the parameter's layout, and may be freed at once. See GradientIntake.
  void add(std::size_t parameter, const torch::Tensor& gradient, bool last, double times);
  /// Returns when all have been written.
  void settle();
  /// Gradients on their way are not written.
  void drop() noexcept { coming_.clear(); }

 private:
  struct Coming {
    std::size_t parameter;
    bool last;
    double times;
    DeviceMark mark;
  };
  void write_first();

  HostCopies& host_;
  Write write_;
  std::deque<Coming> coming_;
};

}  // namespace tutti
