#include "torch/recompute/kept_state.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "tutti/error.h"

namespace tutti {

namespace {

/// The one that the calling thread makes tensors on, where the program has used it.
std::optional<c10::Device> current_device() {
  const auto type = at::accelerator::getAccelerator();
  if (!type || at::accelerator::deviceCount() == 0) return {};
  const auto index = at::accelerator::getDeviceIndex();
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(type);
  if (!hooks.hasPrimaryContext(index)) return {};
  return c10::Device(*type, index);
}

std::vector<Autocast> as_it_is(const std::vector<Autocast>& other) {
  std::vector<Autocast> all;
  for (const auto& one : other) all.emplace_back(one.device);
  return all;
}

}  // namespace

Autocast::Autocast(c10::DeviceType device)
    : device(device),
      is_on(at::autocast::is_autocast_enabled(device)),
      type(at::autocast::get_autocast_dtype(device)) {}

void Autocast::set() const {
  at::autocast::set_autocast_enabled(device, is_on);
  at::autocast::set_autocast_dtype(device, type);
}

KeptState::KeptState(const std::vector<c10::Device>& devices,
                     const std::vector<at::Generator>& others, const std::string& name)
    : autocast_{Autocast(at::kCPU)} {
  auto all = devices;
  if (const auto current = current_device()) all.push_back(*current);
  std::vector<c10::Device> taken;
  for (const auto device : all) {
    if (std::ranges::find(taken, device) != taken.end()) continue;
    taken.push_back(device);
    random_.add(at::globalContext().defaultGenerator(device));
    if (device.type() != autocast_.back().device) autocast_.emplace_back(device.type());
  }
  for (std::size_t g = 0; g < others.size(); ++g) {
    if (!others[g].defined()) {
      throw InvalidArgument(fmt::format("recompute \"{}\": generator {} is undefined", name, g));
    }
    try {
      random_.add(others[g]);
    } catch (const std::exception& error) {
      throw Unsupported(fmt::format(
          "recompute \"{}\": the state of generator {} cannot be taken, so that the segment would "
          "draw other numbers when it runs again: {}",
          name, g, error.what()));
    }
  }
}

KeptState::Restored::Restored(const KeptState& kept,
                              const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
    : random_(kept.random_.now()), autocast_(as_it_is(kept.autocast_)) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : modules) {
    for (const auto& buffer : module->buffers()) {
      if (buffer.defined()) buffers_.push_back({buffer, buffer.detach().clone()});
    }
  }
  kept.random_.restore();
  for (const auto& one : kept.autocast_) one.set();
}

KeptState::Restored::~Restored() {
  random_.restore();
  for (const auto& one : autocast_) one.set();
  const torch::NoGradGuard no_grad;
  // variable_data() has a version of its own: graphs that have kept a buffer may still use it.
  for (const auto& [own, copy] : buffers_) own.variable_data().copy_(copy);
}

}  // namespace tutti
