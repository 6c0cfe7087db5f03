#include "torch/device/torch_device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <thread>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/timeline.h"
#include "comm/group_state.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kSpins = 200;
constexpr std::chrono::microseconds kSleep{50};

}  // namespace

std::optional<std::size_t> free_bytes_on(c10::Device device) {
  auto* const allocator =
      device.is_cpu() ? nullptr
                      : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) return {};
  const auto all = static_cast<std::size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);
  const auto stats = allocator->getDeviceStats(device.index());
  const auto kept = stats.reserved_bytes.at(all).current - stats.allocated_bytes.at(all).current;
  return allocator->getMemoryInfo(device.index()).first + static_cast<std::size_t>(kept);
}

/// A device that has failed says so in whatever call comes next.
template <class Call>
auto TorchDevice::guarded(Call&& call) const {
  try {
    return call();
  } catch (const c10::OutOfMemoryError& error) {
    throw OutOfMemory(
        fmt::format("{}: {}: {}", who_, device_.str(), error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    throw DeviceFailed(fmt::format(
        "{}: {} has failed, here or before: {}; where the device tells late, it names the call "
        "itself if its launches block (CUDA: CUDA_LAUNCH_BLOCKING=1)",
        who_, device_.str(), error.what_without_backtrace()));
  }
}

TorchDevice::TorchDevice(const Group& group, c10::Device device,
                         std::optional<std::chrono::milliseconds> deadline)
    : device_(device),
      deadline_(deadline.value_or(group.state()->job().options().deadline)),
      who_(fmt::format("rank {}", group.job_rank(group.rank()))),
      timeline_(group.state()->job().timeline()),
      guard_(device.type()),
      side_(guard_.getStreamFromGlobalPool(device)) {}

torch::Tensor TorchDevice::host_like(const torch::Tensor& like) const {
  return guarded([&] {
    return torch::empty_strided(like.sizes(), like.strides(),
                                torch::dtype(like.scalar_type()).pinned_memory(true));
  });
}

torch::Tensor TorchDevice::empty_like(const torch::Tensor& like,
                                      const std::function<std::string()>& held) const {
  try {
    return guarded([&] { return torch::empty_like(like.detach()); });
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(fmt::format("{}; {}", error.what(), held()));
  }
}

/// Elements of another type or order would go through memory that nobody keeps for the stream.
void TorchDevice::copy(const torch::Tensor& from, const torch::Tensor& to) {
  TUTTI_CHECK(from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
                  from.strides() == to.strides() && from.is_non_overlapping_and_dense(),
              "a copy between {} and {} that is not of bytes", from.device().str(),
              to.device().str());
  costs_.bytes += from.nbytes();
  queue([&] { to.detach().copy_(from.detach(), /*non_blocking=*/true); },
        {from.is_cpu() ? to : from});
}

void TorchDevice::queue(const std::function<void()>& work,
                        std::initializer_list<torch::Tensor> used) {
  guarded([&] {
    c10::Event queued(device_.type());
    queued.record(guard_.getStream(device_));
    side_.wait(queued);
    const torch::NoGradGuard no_grad;
    const c10::StreamGuard on(side_);
    work();
  });
  for (const auto& tensor : used) {
    if (tensor.defined()) guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), side_);
  }
}

void TorchDevice::run(const std::function<void()>& work) const {
  guarded([&] {
    const torch::NoGradGuard no_grad;
    work();
  });
}

void TorchDevice::comes_after(const DeviceMark& mark) {
  guarded([&] { side_.wait(*mark); });
}

DeviceMark TorchDevice::mark() {
  return guarded([&] {
    auto event = std::make_shared<c10::Event>(device_.type());
    event->record(side_);
    return event;
  });
}

bool TorchDevice::has_passed(const DeviceMark& mark) const {
  return guarded([&] { return mark->query(); });
}

/// By queries: a device that hangs would never return from its own wait.
void TorchDevice::wait(const DeviceMark& mark, const std::function<std::string()>& what) {
  if (has_passed(mark)) return;
  const TimelineSpan span(timeline_, "wait for the device");
  const auto begin = Clock::now();
  for (int spin = 0; !has_passed(mark); ++spin) {
    if (spin < kSpins) {
      std::this_thread::yield();
      continue;
    }
    if (Clock::now() - begin >= deadline_) {
      throw Timeout(fmt::format("{}: {} has not finished {} within {} s", who_, device_.str(),
                                what(), std::chrono::duration<double>(deadline_).count()));
    }
    std::this_thread::sleep_for(kSleep);
  }
  costs_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void TorchDevice::current_stream_waits(const DeviceMark& mark) const {
  guarded([&] { guard_.getStream(device_).wait(*mark); });
}

void TorchDevice::current_stream_uses(const torch::Tensor& tensor) const {
  guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), guard_.getStream(device_));
}

}  // namespace tutti
