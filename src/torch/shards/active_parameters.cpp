#include "torch/shards/active_parameters.h"

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
  for (const auto& [name, parameter] : model.parameters()) {
    set_.push_back(wanted.erase(parameter.unsafeGetTensorImpl()) > 0 ? 1 : 0);
  }
  if (!wanted.empty() || std::ranges::count(set_, 1) == 0) {
    throw InvalidArgument(fmt::format(
        "step() of \"{}\" for module {}, which has {}: make the Trainer of a module that registers "
        "all that take turns",
        trainer, active.name(),
        wanted.empty() ? "no parameters" : "parameters that are not this Trainer's"));
  }
  digest_ = std::max<std::uint64_t>(tutti::digest(set_.data(), set_.size()), 1);
  for (std::size_t p = 0; p < set_.size(); ++p) {
    if (set_[p] != 0 || !model.tensor(p).requires_grad()) continue;
    frozen_.push_back(model.tensor(p));
    frozen_.back().requires_grad_(false);
  }
}

ActiveParameters::~ActiveParameters() {
  for (auto& parameter : frozen_) parameter.requires_grad_(true);
}

}  // namespace tutti
