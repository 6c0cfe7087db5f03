#include "torch/split/noted_rows.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "torch/split/split_layers.h"

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

}  // namespace tutti
