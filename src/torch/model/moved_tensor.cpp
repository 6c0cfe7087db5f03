#include "torch/model/moved_tensor.h"

#include "torch/model/layout.h"
#include "tutti/tensors.h"

namespace tutti {

MovedTensor::MovedTensor(const Group& group, const torch::Tensor& tensor,
                         const CollectiveOptions& options)
    : tensor_(tensor) {
  require_strided(tensor);
  if (tensor.is_cpu()) return;
  require_dense(tensor);
  static_cast<void>(dtype_of(tensor));
  device_.emplace(group, tensor.device(), options.deadline);
  host_ = device_->host_like(tensor);
}

View MovedTensor::values() {
  if (!device_) return view_of(tensor_);
  device_->copy(tensor_, host_);
  device_->wait(device_->mark(), [] { return std::string("the tensor of a collective"); });
  return view_of(host_);
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
