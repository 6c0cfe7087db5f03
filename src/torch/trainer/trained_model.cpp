#include "torch/trainer/trained_model.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

std::size_t TrainedModel::parameter_of(const std::string& name) const {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.name(p) == name) return p;
  }
  for (const auto& item : model.buffers()) {
    if (item.first == name) {
      throw InvalidArgument(fmt::format(
          "\"{}\" is a buffer, not a parameter: with_logical_worker() shows per-replica ones",
          name));
    }
  }
  throw InvalidArgument(
      fmt::format("there is no parameter \"{}\" (the first one is \"{}\")", name, model.name(0)));
}

}  // namespace tutti
