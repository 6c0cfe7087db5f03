#include "torch/recompute/written_memory.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace tutti {
namespace {

/// The innermost watch of this thread: libtorch's callbacks are plain functions.
thread_local WriteWatch* innermost = nullptr;

/// Operations whose schemas do not name the statistics that they write: the places of these among
/// the arguments.
std::vector<std::size_t> unnamed_writes(std::string_view name,
                                        c10::ArrayRef<const c10::IValue> arguments) {
  if (name == "aten::native_batch_norm" && arguments.size() > 5 && arguments[5].toBool()) {
    return {3, 4};
  }
  if (name == "aten::batch_norm_update_stats" && arguments.size() > 2) return {1, 2};
  return {};
}

}  // namespace

WriteWatch::WriteWatch() : enabled_(true), outer_(std::exchange(innermost, this)) {
  if (outer_ != nullptr) return;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&WriteWatch::before)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

WriteWatch::~WriteWatch() {
  innermost = outer_;
  if (outer_ == nullptr) {
    at::removeCallback(callback_);
    return;
  }
  for (auto& item : written_) outer_->note(item.second);
}

std::unique_ptr<at::ObserverContext> WriteWatch::before(const at::RecordFunction& operation) {
  if (innermost == nullptr) return nullptr;
  const auto arguments = operation.inputs();
  const auto write = [&](std::size_t k) {
    if (k >= arguments.size()) return;
    if (arguments[k].isTensor()) innermost->note(arguments[k].toTensor());
    if (!arguments[k].isTensorList()) return;
    for (const auto& tensor : arguments[k].toTensorVector()) innermost->note(tensor);
  };
  for (const auto k : unnamed_writes(operation.name(), arguments)) write(k);
  const auto schema = operation.operator_schema();
  if (!schema) return nullptr;
  for (std::size_t k = 0; k < schema->arguments().size(); ++k) {
    const auto* const alias = schema->arguments()[k].alias_info();
    if (alias != nullptr && alias->isWrite()) write(k);
  }
  return nullptr;
}

void WriteWatch::note(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  const auto begin = tensor.storage_offset() * item;
  note({.storage = tensor.storage().getWeakStorageImpl(),
        .begin = static_cast<std::size_t>(begin),
        .end = static_cast<std::size_t>(begin + (last + 1) * item)});
}

/// A storage that is gone keeps its address, as long as it is noted: no other one has it.
void WriteWatch::note(WrittenMemory written) {
  const auto* const address = written.storage._unsafe_get_target();
  const auto [found, is_new] = written_.try_emplace(address, written);
  if (is_new) return;
  found->second.begin = std::min(found->second.begin, written.begin);
  found->second.end = std::max(found->second.end, written.end);
}

std::vector<WrittenMemory> WriteWatch::take() {
  std::vector<WrittenMemory> all;
  for (const auto& item : written_) all.push_back(item.second);
  return all;
}

RestoredMemory::RestoredMemory(const std::vector<WrittenMemory>& memory) {
  for (const auto& one : memory) {
    auto storage = one.storage.lock();
    if (storage.get() == nullptr || storage->data() == nullptr) continue;
    const auto end = std::min(one.end, storage->nbytes());
    if (one.begin >= end) continue;
    const auto* const at = static_cast<const std::byte*>(storage->data());
    copies_.push_back({std::move(storage), one.begin, {at + one.begin, at + end}});
  }
}

RestoredMemory::~RestoredMemory() {
  for (const auto& [storage, begin, bytes] : copies_) {
    if (begin + bytes.size() > storage->nbytes()) continue;  // the program has shrunk it since
    std::memcpy(static_cast<std::byte*>(storage->mutable_data()) + begin, bytes.data(),
                bytes.size());
  }
}

}  // namespace tutti
