#include "torch/shared_parameters.h"

#include <fmt/format.h>

#include <cstring>

#include "tutti/error.h"

namespace tutti {

SharedParameters::SharedParameters(const Group& group, const WrappedModel& model,
                                   const SharedModel& shared)
    : parameters_(model.parameters()) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    auto& tensor = parameters_[p].second;
    if (group.rank() == 0 && tensor.nbytes() > 0) {
      std::memcpy(shared.value(p), tensor.data_ptr(), tensor.nbytes());
    }
  }
  group.barrier({.label = "parameters"});
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    auto& tensor = parameters_[p].second;
    tensor.set_data(torch::from_blob(
        shared.value(p), tensor.sizes(), tensor.strides(), [memory = shared.memory()](void*) {},
        tensor.options().requires_grad(false)));
    versions_.push_back(static_cast<std::int64_t>(tensor._version()));
  }
}

void SharedParameters::require_untouched() const {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto& [name, tensor] = parameters_[p];
    if (static_cast<std::int64_t>(tensor._version()) != versions_[p]) {
      throw BadInput(fmt::format(
          "parameter \"{}\" was written between steps, where all workers read it; change values "
          "inside trainer.edit()",
          name));
    }
  }
}

void SharedParameters::written() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    auto& tensor = parameters_[p].second;
    tensor.unsafeGetTensorImpl()->bump_version();
    versions_[p] = static_cast<std::int64_t>(tensor._version());
  }
}

}  // namespace tutti
