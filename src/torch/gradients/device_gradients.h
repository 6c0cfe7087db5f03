#pragma once

// Gradients on their way from a device to the host: each is copied while backward goes on, to its
// slot if it can be, and written into the open leaf once it has come, by whoever brings the next
// one or waits for all. Sums go the other way, beside them. Those of a step that holds no values
// (StepExchange::holds_values) stay on the device: gradients are their sums.
//
// Threads: one at a time. Failure: TorchDevice's; that of what writes.

#include <torch/torch.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "sync/step/step_exchange.h"
#include "torch/gradients/pinned_arena.h"
#include "torch/model/host_copies.h"

namespace tutti {

class DeviceGradients {
 public:
  /// `at`: the elements, in the parameter's layout, which `may_stay` there; null: on the device.
  using Write = std::function<void(std::size_t parameter, const void* at, bool last, double times,
                                   bool may_stay)>;
  /// Keeps references.
  DeviceGradients(HostCopies& host, StepExchange& exchange, Write write)
      : host_(host), exchange_(exchange), write_(std::move(write)), pinned_(host, exchange) {}

  /// A step was opened.
  void open();
  /// The gradient is in the parameter's layout, and may be freed at once. See GradientIntake.
  void add(std::size_t parameter, const torch::Tensor& gradient, bool last, double times);
  /// Returns when all have been written.
  void settle();
  /// Gradients on their way are not written.
  void drop() noexcept {
    coming_.clear();
    staying_.clear();
  }
  /// Copies this worker's sum to a tensor of the device.
  void give(std::size_t parameter, const torch::Tensor& to);
  /// What the calling thread queues on the device from now on sees what was given.
  void hand_over();

 private:
  struct Coming {
    std::size_t parameter;
    bool last;
    double times;
    DeviceMark mark;
    const void* at;
    std::unique_ptr<SlotLoan> loan;  ///< null where it comes to the host's copy
  };
  void write_first();
  void keep(std::size_t parameter, const torch::Tensor& gradient);

  HostCopies& host_;
  StepExchange& exchange_;
  Write write_;
  PinnedArena pinned_;
  std::deque<Coming> coming_;
  std::map<std::size_t, torch::Tensor> staying_;  ///< by parameter: gradients that are sums
};

}  // namespace tutti
