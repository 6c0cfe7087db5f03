#include "tutti/split_module.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const char* call, const std::string& layer, const char* instead) {
  throw Unsupported(fmt::format(
      "torch::{0}() of a model with the split layer {1}: each worker has some of its rows. Call "
      "{2} (tutti/split_tensors.h), of a ParallelCrossEntropy {0}(file), and torch::{0}() of the "
      "rest of the model",
      call, layer, instead));
}

}  // namespace

void WeightedLayer::take(const std::shared_ptr<const std::string>& owner) {
  const auto before = owner_.lock();
  if (before != nullptr && before != owner) {
    throw InvalidArgument(
        fmt::format("a split layer of {} is part of {} already: its gradients "
                    "would be taken for those of one of them",
                    *owner, *before));
  }
  owner_ = owner;
}

std::string WeightedLayer::label_of(std::string_view layer, std::string_view what) const {
  return fmt::format("{}{}{}: {}", layer, layer_name_.empty() ? "" : " ", layer_name_, what);
}

void SplitModule::save(torch::serialize::OutputArchive&) const {
  refuse("save", name(), "gather_whole() for each of its split_tensors()");
}
void SplitModule::load(torch::serialize::InputArchive&) {
  refuse("load", name(), "scatter_whole() or take_rows() for each of its split_tensors()");
}

}  // namespace tutti
