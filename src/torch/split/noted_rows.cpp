#include "torch/split/noted_rows.h"

#include <fmt/format.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "comm/group_state.h"
#include "torch/split/split_layers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Pointer = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Noted {
  Pointer tensor;  ///< while it is noted no other has its address
  std::string layer;
  std::vector<int> ranks;
};

std::mutex mutex;

/// Lives as long as the process: so may a layer.
std::unordered_map<const void*, Noted>& all() {
  static auto* const noted = new std::unordered_map<const void*, Noted>();
  return *noted;
}

struct Notes {
  Notes() = default;
  ~Notes() {
    const std::lock_guard lock(mutex);
    for (const auto* const tensor : tensors) all().erase(tensor);
  }
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;
  std::vector<const void*> tensors;
};

}  // namespace

std::shared_ptr<const void> NotedRows::add(const torch::nn::Module& layer, std::vector<int> ranks) {
  auto notes = std::make_shared<Notes>();
  const std::lock_guard lock(mutex);
  for (const auto& parameter : layer.parameters(/*recurse=*/false)) {
    const auto* const tensor = parameter.unsafeGetTensorImpl();
    all().insert_or_assign(tensor, Noted{.tensor = Pointer(parameter.getIntrusivePtr()),
                                         .layer = layer.name(),
                                         .ranks = ranks});
    notes->tensors.push_back(tensor);
  }
  return notes;
}

std::string NotedRows::layer_of(const torch::Tensor& parameter, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex);
  const auto found = all().find(parameter.unsafeGetTensorImpl());
  if (found == all().end()) return {};
  return common_ranks(found->second.ranks, ranks) > 1 ? found->second.layer : std::string();
}

void require_whole(const WrappedModel& model, const Group& group, const char* owner) {
  if (group.size() == 1) return;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto layer = NotedRows::layer_of(model.tensor(p), group.state()->ranks());
    if (layer.empty()) continue;
    throw InvalidArgument(
        fmt::format("{} is this worker's rows of a {} that is split over these workers: named "
                    "parameters are made the same on all; make the {} of the module that has the "
                    "layer",
                    model.label(p), layer, owner));
  }
}

}  // namespace tutti
