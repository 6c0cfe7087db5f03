#include "torch/recompute/written_memory.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "torch/model/moved_tensor.h"
#include "torch/recompute/thread_slot.h"

namespace tutti {
namespace {

/// Operations whose schemas do not name what they write, as statistics, or that have none: the
/// places of that among the arguments.
std::vector<std::size_t> unnamed_writes(std::string_view name,
                                        c10::ArrayRef<const c10::IValue> arguments) {
  const bool is_norm = name == "aten::native_batch_norm" || name == "aten::cudnn_batch_norm" ||
                       name == "aten::miopen_batch_norm";
  if (is_norm && arguments.size() > 5 && arguments[5].toBool()) return {3, 4};
  if (name == kWriteNotice) return {0};
  if (name.starts_with("aten::batch_norm_gather_stats")) return {3, 4};
  if (name == "aten::batch_norm_update_stats" && arguments.size() > 2) return {1, 2};
  return {};
}

}  // namespace

WriteWatch::Seen* WriteWatch::current() {
  return static_cast<Seen*>(
      c10::ThreadLocalDebugInfo::get(kind_of_slot<ThreadSlot::write_watch>()));
}

WriteWatch::WriteWatch()
    : outer_(current()),
      seen_(std::make_shared<Seen>()),
      in_thread_(kind_of_slot<ThreadSlot::write_watch>(), seen_),
      enabled_(true) {
  if (outer_ != nullptr) return;
  ++write_watches;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&WriteWatch::before)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

WriteWatch::~WriteWatch() {
  if (outer_ == nullptr) {
    at::removeCallback(callback_);
    --write_watches;
    return;
  }
  const std::lock_guard lock(outer_->mutex);
  for (auto& item : seen_->written) outer_->note(item.second);
  outer_->threads.insert(seen_->threads.begin(), seen_->threads.end());
}

std::unique_ptr<at::ObserverContext> WriteWatch::before(const at::RecordFunction& operation) {
  auto* const seen = current();
  if (seen == nullptr) return nullptr;
  const std::lock_guard lock(seen->mutex);
  seen->threads.try_emplace(at::RecordFunction::currentThreadId(), at::sequence_number::peek());
  const auto arguments = operation.inputs();
  const auto write = [&](std::size_t k) {
    if (k >= arguments.size()) return;
    if (arguments[k].isTensor()) seen->note(arguments[k].toTensor());
    if (!arguments[k].isTensorList()) return;
    for (const auto& tensor : arguments[k].toTensorVector()) seen->note(tensor);
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

void WriteWatch::Seen::note(const torch::Tensor& tensor) {
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
void WriteWatch::Seen::note(WrittenMemory written) {
  const auto* const address = written.storage._unsafe_get_target();
  const auto [found, is_new] = this->written.try_emplace(address, written);
  if (is_new) return;
  found->second.begin = std::min(found->second.begin, written.begin);
  found->second.end = std::max(found->second.end, written.end);
}

std::vector<WrittenMemory> WriteWatch::take() {
  const std::lock_guard lock(seen_->mutex);
  std::vector<WrittenMemory> all;
  for (const auto& item : seen_->written) all.push_back(item.second);
  return all;
}

ThreadStarts WriteWatch::threads() const {
  const std::lock_guard lock(seen_->mutex);
  return seen_->threads;
}

namespace {

/// A tensor of some bytes of a storage, whose holder the storage is.
torch::Tensor bytes_at(void* begin, std::size_t count, c10::Device device) {
  return at::for_blob(begin, {static_cast<std::int64_t>(count)})
      .options(at::TensorOptions(device).dtype(at::kByte))
      .target_device(device)
      .make_tensor();
}

}  // namespace

RestoredMemory::RestoredMemory(const std::vector<WrittenMemory>& memory) {
  for (const auto& one : memory) {
    auto storage = one.storage.lock();
    if (storage.get() == nullptr || storage->data() == nullptr) continue;
    const auto end = std::min(one.end, storage->nbytes());
    if (one.begin >= end) continue;
    // It is read alone.
    auto* const at = static_cast<std::byte*>(const_cast<void*>(storage->data()));
    auto bytes = bytes_at(at + one.begin, end - one.begin, storage->device()).clone();
    copies_.push_back({std::move(storage), one.begin, std::move(bytes)});
  }
}

RestoredMemory::~RestoredMemory() {
  for (const auto& [storage, begin, bytes] : copies_) {
    if (begin + bytes.nbytes() > storage->nbytes()) continue;  // the program has shrunk it since
    auto* const at = static_cast<std::byte*>(storage->mutable_data());
    bytes_at(at + begin, bytes.nbytes(), storage->device()).copy_(bytes);
  }
}

}  // namespace tutti
