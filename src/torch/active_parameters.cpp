#include "torch/active_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/hash.h"
#include "tutti/error.h"

namespace tutti {

ActiveParameters::ActiveParameters(const WrappedModel& model, const torch::nn::Module& active,
                                   const std::string& trainer) {
  std::set<const void*> wanted;
  for (const auto& parameter : active.parameters()) wanted.insert(parameter.unsafeGetTensorImpl());
  std::vector<std::uint8_t> is_active;
  for (const auto& [name, parameter] : model.parameters()) {
    is_active.push_back(wanted.erase(parameter.unsafeGetTensorImpl()) > 0 ? 1 : 0);
  }
  if (!wanted.empty() || std::ranges::count(is_active, 1) == 0) {
    throw BadInput(fmt::format(
        "step() of \"{}\" for module {}, which has {}: make the Trainer of a module that registers "
        "all that take turns",
        trainer, active.name(),
        wanted.empty() ? "no parameters" : "parameters that are not this Trainer's"));
  }
  digest_ = std::max<std::uint64_t>(tutti::digest(is_active.data(), is_active.size()), 1);
  for (std::size_t p = 0; p < is_active.size(); ++p) {
    if (is_active[p] != 0 || !model.tensor(p).requires_grad()) continue;
    frozen_.push_back(model.tensor(p));
    frozen_.back().requires_grad_(false);
  }
}

ActiveParameters::~ActiveParameters() {
  for (auto& parameter : frozen_) parameter.requires_grad_(true);
}

}  // namespace tutti
