#include "torch/model/random_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "kernels/hash.h"

namespace tutti {
namespace {

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

}  // namespace

RandomState::RandomState(c10::Device device) {
  add(default_generator());
  if (!device.is_cpu()) add(at::globalContext().defaultGenerator(device));
}

RandomState::RandomState(const torch::Tensor& bytes) : states_{{default_generator(), bytes}} {}

void RandomState::add(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto state = generator.get_state();
  states_.emplace_back(std::move(generator), std::move(state));
}

RandomState RandomState::now() const {
  RandomState now = *this;
  now.states_.clear();
  for (const auto& [generator, state] : states_) now.add(generator);
  return now;
}

void RandomState::restore() const {
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

RandomStateMark::RandomStateMark() : seed_(default_generator().current_seed()) {
  const RandomState now;
  state_ = digest(now.bytes().data_ptr(), now.bytes().nbytes());
}

RandomStateMark::Position RandomStateMark::position() const {
  const auto seed = default_generator().current_seed();
  return {seed, seed == seed_ ? state_ : 0};
}

}  // namespace tutti
