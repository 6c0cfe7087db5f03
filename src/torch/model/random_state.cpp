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

std::uint64_t RandomState::digest() const {
  std::uint64_t all = 0;
  for (const auto& [generator, state] : states_) {
    all = tutti::digest(state.const_data_ptr(), state.nbytes(), all);
  }
  return all;
}

std::vector<std::uint64_t> RandomState::seeds() const {
  std::vector<std::uint64_t> seeds;
  for (const auto& [generator, state] : states_) seeds.push_back(generator.current_seed());
  return seeds;
}

RandomStateMark::RandomStateMark(c10::Device device) : then_(device), seeds_(then_.seeds()) {}

RandomStateMark::Position RandomStateMark::position() const {
  const auto seeds = then_.seeds();
  return {seeds.front(), seeds == seeds_ ? then_.digest() : 0};
}

}  // namespace tutti
