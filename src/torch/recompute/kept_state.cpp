#include "torch/recompute/kept_state.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <cstring>
#include <exception>

#include "torch/model/generators.h"
#include "tutti/error.h"

namespace tutti {

KeptState::KeptState(const std::vector<at::Generator>& others, const std::string& name)
    : generators_{default_generator()} {
  generators_.insert(generators_.end(), others.begin(), others.end());
  for (std::size_t g = 0; g < generators_.size(); ++g) {
    if (!generators_[g].defined()) {
      throw InvalidArgument(
          fmt::format("recompute \"{}\": generator {} is undefined", name, g - 1));
    }
    try {
      states_.push_back(generator_state_of(generators_[g]));
    } catch (const std::exception& error) {
      throw Unsupported(fmt::format(
          "recompute \"{}\": the state of generator {} cannot be taken, so that the segment would "
          "draw other numbers when it runs again: {}",
          name, g - 1, error.what()));
    }
  }
}

KeptState::Restored::Autocast::Autocast()
    : is_on(at::autocast::is_autocast_enabled(at::kCPU)),
      type(at::autocast::get_autocast_dtype(at::kCPU)) {}

void KeptState::Restored::Autocast::set() const {
  at::autocast::set_autocast_enabled(at::kCPU, is_on);
  at::autocast::set_autocast_dtype(at::kCPU, type);
}

KeptState::Restored::Restored(const KeptState& kept,
                              const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
    : generators_(kept.generators_) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : modules) {
    for (const auto& buffer : module->buffers()) {
      if (buffer.defined()) buffers_.push_back({buffer, buffer.detach().clone()});
    }
  }
  for (auto& generator : generators_) states_.push_back(generator_state_of(generator));
  for (std::size_t g = 0; g < generators_.size(); ++g)
    set_generator_state(generators_[g], kept.states_[g]);
  kept.autocast_.set();
}

KeptState::Restored::~Restored() {
  for (std::size_t g = 0; g < generators_.size(); ++g)
    set_generator_state(generators_[g], states_[g]);
  autocast_.set();
  const torch::NoGradGuard no_grad;
  // variable_data() has a version of its own: graphs that have kept a buffer may still use it.
  for (const auto& [own, copy] : buffers_) own.variable_data().copy_(copy);
}

}  // namespace tutti
