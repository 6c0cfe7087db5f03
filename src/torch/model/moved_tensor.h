#pragma once

// A tensor's elements where collectives reach them: its own memory, or, of one on a device, a copy
// of the host's, to which and from which the program's stream is not held up.
//
// Threads: one. Failure: Unsupported for tensors that are not moved (tensors.h); InvalidArgument
// for a tensor on a device that a call under way of the group writes; TorchDevice's.

#include <torch/torch.h>

#include <atomic>
#include <memory>

#include "base/coming_input.h"
#include "torch/device/torch_device.h"
#include "tutti/group.h"

namespace tutti {

/// The name under which libtorch's callbacks before operations hear of note_written().
inline constexpr const char* kWriteNotice = "tutti::write";
/// How many watch for it, on whichever thread: without one, nobody is told.
inline std::atomic<int> write_watches{0};
/// Memory of the CPU that collectives write counts as written by an operation of torch's: in the
/// tensor's version, and for what watches operations.
void note_written(const torch::Tensor& tensor);

/// The host's copy of a tensor on a device.
class HostCopy final : public ComingInput {
 public:
  /// Nothing is copied yet.
  HostCopy(const Group& group, const torch::Tensor& tensor, const CollectiveOptions& options);

  /// Where the tensor's values are once they have come: nothing is waited for.
  View coming();
  bool has_come() override;
  void wait() override;
  View room() const;
  /// See MovedTensor.
  void give();

 private:
  torch::Tensor tensor_;
  TorchDevice device_;
  torch::Tensor host_;
  DeviceMark mark_;  ///< of its values
};

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
  std::unique_ptr<HostCopy> copy_;  ///< null where the tensor is on the CPU
};

}  // namespace tutti
