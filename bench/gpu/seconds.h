#pragma once

// How long a call takes on a device.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <chrono>

namespace bench::gpu {

inline constexpr int kWarmUp = 2;  ///< rounds that do not count

inline void synchronize(torch::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

template <class Call>
double seconds_of(torch::Device device, Call&& call) {
  synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  call();
  synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace bench::gpu
