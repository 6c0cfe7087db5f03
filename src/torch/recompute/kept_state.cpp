#include "torch/recompute/kept_state.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <cstring>
#include <exception>

#include "tutti/error.h"

namespace tutti {

KeptState::KeptState(const std::vector<at::Generator>& others, const std::string& name) {
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

KeptState::Restored::Autocast::Autocast()
    : is_on(at::autocast::is_autocast_enabled(at::kCPU)),
      type(at::autocast::get_autocast_dtype(at::kCPU)) {}

void KeptState::Restored::Autocast::set() const {
  at::autocast::set_autocast_enabled(at::kCPU, is_on);
  at::autocast::set_autocast_dtype(at::kCPU, type);
}

KeptState::Restored::Restored(const KeptState& kept,
                              const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
    : random_(kept.random_.now()) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : modules) {
    for (const auto& buffer : module->buffers()) {
      if (buffer.defined()) buffers_.push_back({buffer, buffer.detach().clone()});
    }
  }
  kept.random_.restore();
  kept.autocast_.set();
}

KeptState::Restored::~Restored() {
  random_.restore();
  autocast_.set();
  const torch::NoGradGuard no_grad;
  // variable_data() has a version of its own: graphs that have kept a buffer may still use it.
  for (const auto& [own, copy] : buffers_) own.variable_data().copy_(copy);
}

}  // namespace tutti
