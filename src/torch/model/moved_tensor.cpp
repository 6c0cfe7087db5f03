#include "torch/model/moved_tensor.h"

#include "comm/device_copy.h"
#include "torch/model/layout.h"
#include "tutti/tensors.h"

namespace tutti {

MovedTensor::MovedTensor(const Group& group, const torch::Tensor& tensor,
                         const CollectiveOptions& options)
    : tensor_(tensor) {
  require_strided(tensor);
  if (tensor.is_cpu()) return;
  require_dense(tensor);
  require_apart(group, {tensor.const_data_ptr(), tensor.numel(), dtype_of(tensor)});
  device_.emplace(group, tensor.device(), options.deadline);
  host_ = device_->host_like(tensor);
}

View MovedTensor::values() {
  const View view = coming();
  wait();
  return view;
}

View MovedTensor::coming() {
  if (!device_) return view_of(tensor_);
  device_->copy(tensor_, host_);
  mark_ = device_->mark();
  return view_of(host_);
}

bool MovedTensor::has_come() { return !mark_ || device_->has_passed(mark_); }

void MovedTensor::wait() {
  if (mark_) device_->wait(mark_, [] { return std::string("the tensor of a collective"); });
}

View MovedTensor::room() const { return view_of(device_ ? host_ : tensor_); }

void MovedTensor::give() {
  if (!device_) {
    if (!tensor_.is_inference()) tensor_.unsafeGetTensorImpl()->bump_version();
    return;
  }
  device_->copy(host_, tensor_);
  device_->current_stream_waits(device_->mark());
}

}  // namespace tutti
