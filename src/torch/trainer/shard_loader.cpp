#include "tutti/shard_loader.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>

#include "base/helper_thread.h"

namespace tutti::detail {

void mark_reader_thread() { mark_helper_thread(); }

/// Threads take turns: copies run on one stream of its own.
struct BatchSender::Impl {
  explicit Impl(torch::Device to)
      : device(to), guard(to.type()), side(guard.getStreamFromGlobalPool(to)) {}

  struct Copies {
    c10::Event done;
    std::vector<torch::Tensor> pinned;  ///< which they read until then
  };

  torch::Device device;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream side;
  std::mutex mutex;
  std::deque<std::shared_ptr<Copies>> under_way;
};

BatchSender::BatchSender(torch::Device device) : impl_(std::make_unique<Impl>(device)) {}

BatchSender::~BatchSender() {
  try {
    for (const auto& copies : impl_->under_way) copies->done.synchronize();
  } catch (...) {  // the device has failed: its next call says so
  }
}

std::shared_ptr<void> BatchSender::send(const std::vector<torch::Tensor*>& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> pinned;
  for (const auto* tensor : tensors) {
    if (tensor->layout() != torch::kStrided) {
      throw InvalidArgument(
          "ShardLoader: a batch has a sparse tensor, which it does not bring to a device: leave "
          "LoaderOptions::device out, and send it in the closure");
    }
    auto copy = torch::empty_like(*tensor, tensor->options().pinned_memory(true));
    pinned.push_back(copy.copy_(*tensor));
  }
  const std::lock_guard lock(impl_->mutex);
  auto& [device, guard, side, mutex, under_way] = *impl_;
  while (!under_way.empty() && under_way.front()->done.query()) under_way.pop_front();
  const auto copies = std::make_shared<Impl::Copies>(c10::Event(device.type()), std::move(pinned));
  {
    const c10::StreamGuard on(side);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const auto& from = copies->pinned[k];
      *tensors[k] = torch::empty_like(from, from.options().device(device).pinned_memory(false));
      tensors[k]->copy_(from, /*non_blocking=*/true);
    }
  }
  copies->done.record(side);
  under_way.push_back(copies);
  return copies;
}

void BatchSender::arrive(const std::shared_ptr<void>& sent,
                         const std::vector<torch::Tensor*>& tensors) {
  const auto current = impl_->guard.getStream(impl_->device);
  current.wait(std::static_pointer_cast<Impl::Copies>(sent)->done);
  for (const auto* tensor : tensors) {
    impl_->guard.recordDataPtrOnStream(tensor->storage().data_ptr(), current);
  }
}

}  // namespace tutti::detail
