#include "torch/shards/device_parameters.h"

#include <fmt/format.h>

#include <exception>

#include "base/log_line.h"
#include "torch/model/same_bytes.h"
#include "torch/model/tensor_at.h"

namespace tutti {

DeviceParameters::DeviceParameters(const Group& group, const WrappedModel& model,
                                   const SharedModel& shared,
                                   std::optional<std::chrono::milliseconds> deadline)
    : parameters_(model.parameters()), shared_(shared), device_(group, model.device(), deadline) {
  if (shared.value_bytes() == 0) return;
  std::string problem;
  pinned_ =
      RegisteredMemory::of(model.device(), shared.memory().data(), shared.value_bytes(), problem);
  if (!pinned_ && group.rank() == 0) {
    log_info(fmt::format("{}: copies of parameters wait for the host", problem));
  }
}

DeviceParameters::~DeviceParameters() {
  try {
    settle();
  } catch (const std::exception& error) {
    log_warning(fmt::format("a Trainer has ended, but: {}", error.what()));
  }
}

torch::Tensor DeviceParameters::value(std::size_t parameter) const {
  const auto& like = parameters_[parameter].second;
  return tensor_at(shared_.value(parameter), like, like.scalar_type(), shared_.memory());
}

void DeviceParameters::give(std::span<const std::uint32_t> parameters) {
  if (parameters.empty()) return;
  for (const auto p : parameters) device_.copy(value(p), parameters_[p].second);
  device_.current_stream_waits(device_.mark());
}

void DeviceParameters::settle() {
  device_.wait(device_.mark(), [] { return "copies of parameters"; });
}

void DeviceParameters::take(std::span<const std::uint32_t> parameters) {
  for (const auto p : parameters) device_.copy(parameters_[p].second, value(p));
  settle();
}

std::optional<std::size_t> DeviceParameters::differing() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto copy = device_.host_like(parameters_[p].second);
    device_.copy(parameters_[p].second, copy);
    settle();
    if (!same_bytes(copy, value(p))) return p;
  }
  return {};
}

}  // namespace tutti
