#include "tutti/split_module.h"

#include <fmt/format.h>

#include "comm/group_state.h"
#include "torch/ops/collective_node.h"
#include "torch/split/noted_rows.h"
#include "torch/split/split_rows.h"
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

void WeightedLayer::take_copies(torch::nn::Module& layer, const torch::nn::Module& other,
                                const std::optional<torch::Device>& device) {
  const auto copy = [&](const auto& into, const auto& from) {
    for (const auto& item : from) {
      const auto* const own = into.find(item.key());
      if (own == nullptr || own->sizes() != item.value().sizes()) {
        throw InvalidArgument(
            fmt::format("clone(): {} \"{}\" has another shape than in the {} that reset() has made",
                        other.name(), item.key(), layer.name()));
      }
      const auto& value = item.value();
      auto to = *own;
      to.set_data(device && value.device() != *device ? value.to(*device) : value.clone());
    }
  };
  const torch::NoGradGuard no_grad;
  copy(layer.named_parameters(/*recurse=*/false), other.named_parameters(/*recurse=*/false));
  copy(layer.named_buffers(/*recurse=*/false), other.named_buffers(/*recurse=*/false));
  layer.train(other.is_training());
}

std::string WeightedLayer::label_of(std::string_view layer, std::string_view what) const {
  return fmt::format("{}{}{}: {}", layer, layer_name_.empty() ? "" : " ", layer_name_, what);
}

void SplitModule::note_rows() {
  noted_.reset();
  noted_ = NotedRows::add(*this, group_.state()->ranks());
}

torch::Tensor SplitModule::own_rows(const torch::Tensor& parameter) const {
  if (!parameter.requires_grad()) return parameter;
  return ops::with_gradient(
      parameter.detach(), parameter,
      [group = group_, weight = shared_weight_, layer = name()](const torch::Tensor& gradient) {
        return of_own_rows(gradient, group, *weight, layer);
      });
}

void SplitModule::clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) {
  if (updates_itself() || anchor().defined()) {
    throw Unsupported(fmt::format(
        "clone() of a model with the layer {}, which keeps its rows and their optimizer's "
        "state itself: make another layer, and let it load(file) what this one has saved",
        name()));
  }
  take_copies(*this, other, device);
}

void SplitModule::save(torch::serialize::OutputArchive&) const {
  refuse("save", name(), "gather_whole() for each of its split_tensors()");
}
void SplitModule::load(torch::serialize::InputArchive&) {
  refuse("load", name(), "scatter_whole() or take_rows() for each of its split_tensors()");
}

}  // namespace tutti
