#pragma once

// A worker's copies of a model's parameters on its device, of values that its host has once: they
// come from there when values have changed, and go there when the program has written to a copy.
//
// Threads: one at a time. Failure: TorchDevice's.

#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/update/shared_model.h"
#include "torch/device/registered_memory.h"
#include "torch/device/torch_device.h"
#include "torch/model/host_copies.h"
#include "torch/model/wrapped_model.h"
#include "tutti/group.h"
#include "tutti/step_report.h"

namespace tutti {

class DeviceParameters {
 public:
  /// `model` is on one device. Keeps a reference to `shared`, whose values are pinned where that is
  /// to be had: else copies wait for the host, and a line at the start says so.
  DeviceParameters(const Group& group, const WrappedModel& model, const SharedModel& shared,
                   std::optional<std::chrono::milliseconds> deadline);
  /// Waits for copies.
  ~DeviceParameters();
  DeviceParameters(const DeviceParameters&) = delete;
  DeviceParameters& operator=(const DeviceParameters&) = delete;

  /// These copies become the values, for what the calling thread queues from now on.
  void give(std::span<const std::uint32_t> parameters);
  /// Returns when no copy is on its way: values may change.
  void settle();
  /// These values become those of this worker's copies.
  void take(std::span<const std::uint32_t> parameters);
  /// Adds what copies have cost since the last call.
  void add_costs(StepReport& report) { tutti::add_costs(report, device_.costs()); }
  /// The first parameter whose copy has other bytes than its value.
  std::optional<std::size_t> differing();

 private:
  torch::Tensor value(std::size_t parameter) const;

  NamedTensors parameters_;
  const SharedModel& shared_;
  TorchDevice device_;
  std::unique_ptr<RegisteredMemory> pinned_;  ///< null where that is not to be had
};

}  // namespace tutti
