#pragma once

// Memory of the host beside a model on a device, a tensor for each parameter and each buffer: where
// gradients come to, sums leave from, and what workers compare or average of the model lies.
//
// Threads: one at a time. Failure: OutOfMemory; TorchDevice's.

#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/step/digest_check.h"
#include "torch/device/torch_device.h"
#include "torch/model/wrapped_model.h"
#include "tutti/group.h"
#include "tutti/step_report.h"

namespace tutti {

void add_costs(StepReport& step, const DeviceCosts& costs);

class HostCopies {
 public:
  /// Which tensors have copies: buffers alone where the parameters' values are elsewhere.
  enum class Of : std::uint8_t { all, buffers };
  /// Keeps a reference to `model`, which is on one device. `name` is in errors.
  HostCopies(const WrappedModel& model, const Group& group,
             std::optional<std::chrono::milliseconds> deadline, const std::string& name,
             Of of = Of::all);
  /// Waits for what is on its way.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Copies to the host, and those of give_…().
  TorchDevice& device() { return device_; }
  /// Copies of sums to the device, beside those.
  TorchDevice& sums() { return sums_; }
  /// In the parameter's layout. It belongs to its gradient, and its sum, but from
  /// fetch_parameters() until they are read.
  const torch::Tensor& of_parameter(std::size_t parameter) const { return parameters_[parameter]; }
  std::string label(std::size_t parameter) const { return model_.label(parameter); }
  /// Bytes that the model's parameters take.
  std::size_t parameter_bytes() const;
  /// Bytes that these copies take.
  std::size_t bytes() const;
  /// Adds what copies have cost since this was called last.
  void report(StepReport& step);
  /// The copies of buffers, by the buffers' names.
  NamedTensors buffers() const;
  /// The copies as the model's memory, for those that read it.
  ModelMemory memory() const;

  /// The copies become the model's values, after what sums() copies. No gradient may be on its way.
  void fetch_parameters();
  void fetch_parameters(std::span<const std::uint32_t> some);
  void fetch_buffers();
  /// The buffers' present values, in memory of their own: on their way, until settle().
  std::vector<torch::Tensor> copies_of_buffers();
  /// Returns when no copy is on its way: the host may write the copies.
  void settle();
  /// The model's parameters or buffers that are marked become the copies' values, in the order of
  /// the device; torch's versions count it.
  void give_parameters(std::span<const std::uint8_t> changed);
  void give_buffers(std::span<const std::uint8_t> changed);

 private:
  void wait_for(const char* what);
  void give(const std::vector<torch::Tensor>& copies, const NamedTensors& to,
            std::span<const std::uint8_t> changed);

  const WrappedModel& model_;
  TorchDevice device_;
  TorchDevice sums_;
  std::string name_;
  Of of_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> buffers_;
};

}  // namespace tutti
