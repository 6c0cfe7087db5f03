#pragma once

// The nodes of a worker whose gradients are on a device, folded there while backward goes on: by
// ATen's single IEEE operations, whose bits are the host's, on the stream that brings a gradient
// (that of all hooks of a backward, which libtorch makes wait for one another). A node that is
// complete is copied to its place in the arena beside that, in its own width; who brings the next
// gradient, or waits for all, tells the exchange that it has come. Sums go the other way, beside
// them. Those of a step that holds no values (StepExchange::holds_values) stay on the device: nodes
// are their sums.
//
// Threads: one at a time. Failure: TorchDevice's; that of the exchange.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "sync/step/step_exchange.h"
#include "torch/device/device_numbers.h"
#include "torch/gradients/pinned_arena.h"
#include "torch/model/host_copies.h"

namespace tutti {

class DeviceGradients final : public NodesElsewhere {
 public:
  /// Keeps references. `numbers`, null where nobody asks, get the magnitudes of leaves.
  DeviceGradients(HostCopies& host, StepExchange& exchange, DeviceNumbers* numbers);
  ~DeviceGradients() override;
  DeviceGradients(const DeviceGradients&) = delete;
  DeviceGradients& operator=(const DeviceGradients&) = delete;

  /// A step was opened.
  void open();
  /// A gradient of the open leaf, in the parameter's layout. `may_stay`: nothing else holds its
  /// memory. It may be freed, or written by the thread that calls, at once.
  void add(std::size_t parameter, const torch::Tensor& gradient, bool last, bool may_stay);
  /// The places in `numbers` of the largest magnitudes among what the leaf since the last call has
  /// added, by parameter: weight · gradient.
  std::map<std::size_t, std::size_t> take_magnitudes() { return std::exchange(largest_, {}); }
  /// Returns when all nodes that have left have come.
  void settle();
  /// Nodes of the step, and those on their way, do not count.
  void drop() noexcept;
  /// Bytes of nodes that have not left.
  std::size_t bytes_held() const;
  /// Copies this worker's sum to a tensor of the device.
  void give(std::size_t parameter, const torch::Tensor& to);
  /// What the calling thread queues on the device from now on sees what was given.
  void hand_over();

  // NodesElsewhere, of which a gradient is a torch::Tensor
  void reset() override;
  void set(std::size_t parameter, std::uint8_t slot, const void* gradient, double weight,
           bool may_stay) override;
  void add(std::size_t parameter, std::uint8_t slot, const void* gradient, double weight) override;
  void add_node(std::size_t parameter, std::uint8_t left, std::uint8_t right) override;
  bool holds(std::size_t parameter, std::uint8_t slot) const override;
  bool leave(std::size_t parameter, std::uint8_t slot, std::byte* to, bool completes) override;

 private:
  using Nodes = std::map<std::uint8_t, torch::Tensor>;  ///< by slot
  struct Coming {
    std::size_t parameter;
    bool completes;
    DeviceMark mark;
    torch::Tensor by;  ///< memory of the host on the way to `to`; undefined: straight there
    std::byte* to;
  };
  void first_arrives();
  torch::Tensor& widened(torch::Tensor& node, std::size_t parameter) const;
  void note_magnitude(std::size_t parameter, const torch::Tensor& added);

  HostCopies& host_;
  StepExchange& exchange_;
  DeviceNumbers* numbers_;
  PinnedArena pinned_;
  std::vector<Nodes> nodes_;  ///< by parameter: what has not left
  std::deque<Coming> coming_;
  std::deque<Coming> dropped_;                  ///< may still be on their way
  std::map<std::size_t, std::size_t> largest_;  ///< take_magnitudes()
};

}  // namespace tutti
