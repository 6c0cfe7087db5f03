#include "torch/shard_buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "torch/trainer_settings.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

void copy_bytes(const torch::Tensor& to, const void* from) {
  if (to.nbytes() > 0) std::memcpy(to.data_ptr(), from, to.nbytes());
  to.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

ShardBuffers::ShardBuffers(const WrappedModel& model, const StepExchange& exchange,
                           const TrainerOptions& options)
    : exchange_(exchange), deadline_(options.deadline), buffers_(model.buffers()) {
  std::vector<TensorSpec> specs;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& [buffer, tensor] = buffers_[b];
    const auto rule = buffer_rule_of(options, buffer, tensor);
    if (rule == BufferRule::keep) kept_.push_back(b);
    if (rule != BufferRule::mean) continue;
    averaged_.push_back(b);
    specs.push_back(
        {buffer, tensor.sizes().vec(), tensor.strides().vec(), tensor.numel(), dtype_of(tensor)});
  }
  if (!specs.empty()) {
    mean_ = std::make_unique<BufferMean>(exchange.group(), std::move(specs), options.name);
  }
  send_from_first_rank();
}

void ShardBuffers::send_from_first_rank() {
  for (const auto& item : buffers_) {
    tutti::send_from_first_rank(exchange_.group(), item, deadline_);
    item.second.unsafeGetTensorImpl()->bump_version();
  }
  keep();
}

void ShardBuffers::keep() {
  begin_.clear();
  for (const auto& item : buffers_) begin_.push_back(item.second.detach().clone());
}

void ShardBuffers::require_untouched() const {
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& [name, tensor] = buffers_[b];
    if (tensor.nbytes() == begin_[b].nbytes() &&
        std::memcmp(tensor.data_ptr(), begin_[b].data_ptr(), tensor.nbytes()) == 0) {
      continue;
    }
    throw BadInput(
        fmt::format("buffer \"{}\" was changed between steps on this worker; change values inside "
                    "trainer.edit(), and run the model outside of steps in eval()",
                    name));
  }
}

void ShardBuffers::open(std::int64_t first_shard) {
  if (mean_) mean_->open(first_shard);
}

void ShardBuffers::restore() {
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    copy_bytes(buffers_[b].second, begin_[b].data_ptr());
  }
}

void ShardBuffers::take(bool is_first) {
  if (mean_) {
    std::vector<const void*> values;
    for (const auto b : averaged_) values.push_back(buffers_[b].second.data_ptr());
    mean_->take(values);
  }
  if (!is_first) return;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& entry = exchange_.plan().buffers()[b];
    std::memcpy(exchange_.arena().data() + entry.offset, buffers_[b].second.data_ptr(),
                entry.bytes);
  }
}

void ShardBuffers::skip() {
  if (mean_) mean_->skip();
}

void ShardBuffers::publish() {
  if (mean_) mean_->publish();
}

void ShardBuffers::finish(const ShardBoard& board) {
  int first = -1;
  for (int r = 0; r < board.size(); ++r) {
    if (board.of(r).first_ran < 0) continue;
    if (first < 0 || board.of(r).first_ran < board.of(first).first_ran) first = r;
  }
  if (first < 0) return restore();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    copy_bytes(buffers_[b].second,
               exchange_.arena().block(first) + exchange_.plan().buffers()[b].offset);
  }
  if (mean_) {
    std::vector<void*> values;
    for (const auto b : averaged_) values.push_back(buffers_[b].second.data_ptr());
    mean_->mean(values);
  }
  for (const auto b : kept_) copy_bytes(buffers_[b].second, begin_[b].data_ptr());
  keep();
}

}  // namespace tutti
