#include "torch/recompute/segment_devices.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

void require_kind(const TensorList& tensors, const char* what, const std::string& name) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const auto device = tensors[i].device();
    if (!device.is_cpu() && device.type() != at::accelerator::getAccelerator()) {
      throw Unsupported(fmt::format(
          "recompute \"{}\": {} {} is on {}, and neither on the CPU nor on a device that libtorch "
          "computes on",
          name, what, i, device.str()));
    }
    if (tensors[i].layout() != torch::kStrided) {
      throw Unsupported(fmt::format("recompute \"{}\": {} {} is not dense", name, what, i));
    }
  }
}

std::vector<c10::Device> devices_of(const TensorList& tensors) {
  std::vector<c10::Device> all;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && !tensor.is_cpu()) all.push_back(tensor.device());
  }
  return all;
}

std::optional<c10::Device> one_device(const std::vector<c10::Device>& devices,
                                      const std::string& name) {
  if (devices.empty()) return {};
  for (const auto device : devices) {
    if (device == devices.front()) continue;
    throw Unsupported(fmt::format(
        "recompute \"{}\": the segment computes on {} and on {}: on one device besides the CPU, at "
        "most",
        name, devices.front().str(), device.str()));
  }
  return devices.front();
}

std::unique_lock<std::recursive_mutex> one_segment_at_a_time() {
  static std::recursive_mutex running;
  if (!at::accelerator::getAccelerator()) return {};
  return std::unique_lock(running);
}

void pass_through_thread_of(c10::Device device) {
  const c10::AutoGradMode recorded(true);
  const auto leaf = torch::empty({0}, torch::TensorOptions(device)).requires_grad_();
  torch::autograd::grad({leaf * 1}, {leaf}, {torch::empty({0}, torch::TensorOptions(device))});
}

}  // namespace tutti
