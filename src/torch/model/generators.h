#pragma once

// The state of a random generator, taken and put back under its lock.
//
// Threads: any. Failure: what torch throws for a generator whose state it cannot take.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <mutex>

namespace tutti {

inline at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

inline torch::Tensor generator_state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

inline void set_generator_state(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace tutti
