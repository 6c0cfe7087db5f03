#include "torch/model/module_modes.h"

#include <fmt/format.h>

namespace tutti {

std::vector<std::uint8_t> modes_of(const torch::nn::Module& model) {
  std::vector<std::uint8_t> modes;
  model.apply(
      [&](const torch::nn::Module& module) { modes.push_back(module.is_training() ? 1 : 0); });
  return modes;
}

std::string module_text(const torch::nn::Module& model, std::size_t k) {
  std::string text;
  model.apply([&](const std::string& name, const torch::nn::Module&) {
    if (k-- == 0) text = name.empty() ? "the model" : fmt::format("module \"{}\"", name);
  });
  return text;
}

}  // namespace tutti
