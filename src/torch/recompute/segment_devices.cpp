#include "torch/recompute/segment_devices.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <memory>

#include "torch/recompute/thread_slot.h"
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

OneSegmentAtATime::OneSegmentAtATime() {
  static std::mutex running;
  const auto slot = kind_of_slot<ThreadSlot::segment>();
  if (!at::accelerator::getAccelerator() || c10::ThreadLocalDebugInfo::get(slot)) return;
  lock_ = std::unique_lock(running);
  in_thread_.emplace(slot, std::make_shared<c10::DebugInfoBase>());
}

void pass_through_thread_of(c10::Device device) {
  const c10::AutoGradMode recorded(true);
  const auto leaf = torch::empty({0}, torch::TensorOptions(device)).requires_grad_();
  torch::autograd::grad({leaf * 1}, {leaf}, {torch::empty({0}, torch::TensorOptions(device))});
}

}  // namespace tutti
