#include "torch/model/moved_tensor.h"

#include <ATen/record_function.h>

#include <string>
#include <utility>

#include "comm/device_copy.h"
#include "torch/model/layout.h"
#include "torch/model/real_numbers.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

const torch::Tensor& require_moved(const Group& group, const torch::Tensor& tensor) {
  require_dense(tensor);
  require_apart(group, {tensor.const_data_ptr(), count_of_reals(tensor), dtype_of(tensor)});
  return tensor;
}

/// The rare half of note_written(): few programs watch writes.
void tell_watches(const torch::Tensor& tensor) {
  auto watching = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!watching) return;
  at::RecordFunction record(std::move(*watching));
  const c10::IValue written(tensor);
  record.before(kWriteNotice, c10::ArrayRef<const c10::IValue>(&written, 1));
}

}  // namespace

void note_written(const torch::Tensor& tensor) {
  if (write_watches.load(std::memory_order_relaxed) > 0) tell_watches(tensor);
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

HostCopy::HostCopy(const Group& group, const torch::Tensor& tensor,
                   const CollectiveOptions& options)
    : tensor_(require_moved(group, tensor)),
      device_(group, tensor.device(), options.deadline),
      host_(device_.host_like(tensor)) {}

View HostCopy::coming() {
  device_.copy(tensor_, host_);
  mark_ = device_.mark();
  return room();
}

bool HostCopy::has_come() { return device_.has_passed(mark_); }

void HostCopy::wait() {
  device_.wait(mark_, [] { return std::string("the tensor of a collective"); });
}

View HostCopy::room() const { return view_of(host_); }

void HostCopy::give() {
  device_.copy(host_, tensor_);
  device_.current_stream_waits(device_.mark());
}

MovedTensor::MovedTensor(const Group& group, const torch::Tensor& tensor,
                         const CollectiveOptions& options)
    : tensor_(tensor) {
  require_strided(tensor);
  if (tensor.is_cpu()) return;
  copy_ = std::make_unique<HostCopy>(group, tensor, options);
}

View MovedTensor::values() {
  if (!copy_) return view_of(tensor_);
  const View view = copy_->coming();
  copy_->wait();
  return view;
}

View MovedTensor::room() const { return copy_ ? copy_->room() : view_of(tensor_); }

void MovedTensor::give() {
  if (copy_) return copy_->give();
  note_written(tensor_);
}

}  // namespace tutti
